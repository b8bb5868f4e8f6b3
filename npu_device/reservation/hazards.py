"""RAW, WAR and WAW between commands in flight, by byte range (docs/interface.md, "Order and visibility"), in the native
subset.

Two interval trees hold the regions that commands in flight read and write. A command waits for the older accesses that
conflict with its own. A write replaces the older accesses that it covers in the trees: a later command that uses these
bytes waits for the newer access, which waits for the older. So a search visits only direct dependencies. Of these, a
write that covers the access hides all older accesses.

Rows of a matrix may conflict with thousands of its columns. An access with more than `LISTED` conflicts only counts
them; each access that completes then searches for such waiters.
"""

from npu_device.decode.command import ACCUMULATORS_BASE
from npu_device.memory.region import OPERAND_WORDS
from npu_device.reservation.scheduler import enqueue_released
from npu_device.reservation.state import ENDED, FOREVER, Access, Dependency, Entry, Issue
from pyv_native.arena import callback

LISTED = 8
"""Maximum number of conflicts of an access that have a list entry."""
PRIORITY = 0x9E37_79B1
"""2^32 divided by the golden ratio: multiples of it are the priorities of a balanced treap."""

# -- interval trees ----------------------------------------------------------------------------------------------------


def precedes(a: Access, b: Access) -> bool:
    """Check the order of the tree: by address, then by age."""
    return a.low < b.low or (a.low == b.low and a.id < b.id)


def refresh(tree: Access) -> None:
    """Compute `max_end` from both subtrees."""
    tree.max_end = tree.end
    if tree.left is not None:
        tree.max_end = max(tree.max_end, tree.left.max_end)
    if tree.right is not None:
        tree.max_end = max(tree.max_end, tree.right.max_end)


def split(tree: Access | None, access: Access) -> None:
    """Make the accesses of a tree before an access its left subtree, and the others its right subtree."""
    if tree is None:
        access.left = None
        access.right = None
    elif precedes(access, tree):
        split(tree.left, access)
        tree.left = access.right
        refresh(tree)
        access.right = tree
    else:
        split(tree.right, access)
        tree.right = access.left
        refresh(tree)
        access.left = tree


def insert(tree: Access | None, access: Access) -> Access:
    """Insert an access. Return the new root."""
    parent = None
    node = tree
    while node is not None and node.priority >= access.priority:
        node.max_end = max(node.max_end, access.end)
        parent = node
        node = node.left if precedes(access, node) else node.right
    split(node, access)
    refresh(access)
    if parent is None or tree is None:
        return access
    if precedes(access, parent):
        parent.left = access
    else:
        parent.right = access
    return tree


def join(left: Access | None, right: Access | None) -> Access | None:
    """Join two trees, of which all of `left` precedes `right`."""
    if left is None:
        return right
    if right is None:
        return left
    if left.priority > right.priority:
        left.right = join(left.right, right)
        refresh(left)
        return left
    right.left = join(left, right.left)
    refresh(right)
    return right


def remove(tree: Access | None, access: Access) -> Access | None:
    """Remove an access. Return the new root."""
    if tree is None:
        return None
    if tree is access:
        return join(tree.left, tree.right)
    if precedes(access, tree):
        tree.left = remove(tree.left, access)
    else:
        tree.right = remove(tree.right, access)
    if tree.max_end == access.end:
        refresh(tree)
    return tree


def detach(issue: Issue, access: Access) -> None:
    """Remove an access from its tree, so that later accesses ignore it."""
    if not access.in_tree:
        return
    access.in_tree = False
    if access.written:
        issue.writers = remove(issue.writers, access)
    else:
        issue.readers = remove(issue.readers, access)


def conflicts(a: Access, b: Access) -> bool:
    """Check whether two accesses conflict, by the rule of `memory.region.conflict`."""
    if a.low >= b.end or b.low >= a.end:
        return False
    if not a.stride or a.stride != b.stride:
        return True
    distance = (b.low - a.low) % a.stride
    return distance < a.row_bytes or a.stride - distance < b.row_bytes


def covers(a: Access, b: Access) -> bool:
    """Check whether all accesses that conflict with `b` conflict with `a`."""
    if not a.stride:
        return a.low <= b.low and b.end <= a.end
    return a.low == b.low and a.end == b.end and a.stride == b.stride and a.row_bytes == b.row_bytes


def search(issue: Issue, tree: Access | None, access: Access) -> None:
    """Add the conflicting accesses of other commands to the matches."""
    while tree is not None and tree.max_end > access.low:
        search(issue, tree.left, access)
        if tree.low >= access.end:
            return
        if conflicts(tree, access) and tree.entry is not access.entry:
            tree.match = issue.matches
            issue.matches = tree
        tree = tree.right


@callback
def report_dependency(issue: Issue, number: int, at_end: bool) -> int:
    """Report that the current command waits for the end or retirement of the command `number`."""
    raise NotImplementedError


# -- hazards -----------------------------------------------------------------------------------------------------------


def waits_for_end(access: Access, older: Access) -> bool:
    """Check whether an access waits for the end of an older command rather than for its retirement.

    Results are forwarded to readers. They reach memory in order, so a writer waits until the previous writer retires.
    Accumulators are written at the end.
    """
    return not access.written or not older.written or access.low >= ACCUMULATORS_BASE


def append_dependency(issue: Issue, access: Access, older: Access) -> None:
    """Add the command of an access to the waiters of an older command."""
    dependency = issue.free_dependencies
    if dependency is None:
        return
    issue.free_dependencies = dependency.next
    issue.spare_dependencies -= 1
    dependency.waiter = access.entry
    if waits_for_end(access, older):
        dependency.next = older.entry.after_end
        older.entry.after_end = dependency
    else:
        dependency.next = older.entry.after_retirement
        older.entry.after_retirement = dependency


def is_pending(access: Access, older: Access) -> bool:
    """Check whether an access waits for a match: the match is incomplete, and no write between the two covers it."""
    if older.id < access.cover:
        return False
    return older.entry.stage != ENDED or not waits_for_end(access, older)


def collect(issue: Issue, access: Access) -> None:
    """Register hazards on the matches of a search. Remove covered matches from the trees if the access is a write."""
    access.cover = 0
    older = issue.matches
    while older is not None:
        if older.written and covers(older, access):
            access.cover = max(access.cover, older.id)
        older = older.match
    conflict_count = 0
    older = issue.matches
    while older is not None:
        conflict_count += is_pending(access, older)
        older = older.match
    if conflict_count > LISTED:
        access.next_unlisted = issue.unlisted
        issue.unlisted = access
    older = issue.matches
    issue.matches = None
    while older is not None:
        if is_pending(access, older):
            if issue.reporting:
                report_dependency(issue, older.entry.number, waits_for_end(access, older))
            access.entry.hazards += 1
            if conflict_count <= LISTED:
                append_dependency(issue, access, older)
        if access.written and covers(access, older):
            detach(issue, older)
            older.successor = access.id
        older = older.match


def use(issue: Issue, entry: Entry, first: int) -> None:
    """Register the operand at word `first`: add its hazards on older accesses, and insert it into a tree."""
    access = issue.free_accesses
    if access is None:
        return
    issue.free_accesses = access.next
    issue.spare_accesses -= 1
    access.entry = entry
    access.low = issue.operands[first]
    access.end = issue.operands[first + 1]
    access.row_bytes = issue.operands[first + 2]
    access.stride = issue.operands[first + 3]
    access.written = issue.operands[first + 4] != 0
    access.id = issue.accesses
    access.priority = (access.id & 0xFFFF_FFF) * PRIORITY & 0xFFFF_FFFF
    issue.accesses += 1
    access.successor = FOREVER
    access.next = entry.accesses
    entry.accesses = access
    if access.written:
        search(issue, issue.readers, access)
    search(issue, issue.writers, access)
    collect(issue, access)
    access.in_tree = True
    if access.written:
        issue.writers = insert(issue.writers, access)
    else:
        issue.readers = insert(issue.readers, access)


def add_hazards(issue: Issue, entry: Entry) -> None:
    """Count the hazards of a command in `entry.hazards`. Its operands are `issue.operands`."""
    for first in range(0, len(issue.operands), OPERAND_WORDS):
        use(issue, entry, first)
    issue.operands.clear()


def release(issue: Issue, entry: Entry, cycle: int) -> int:
    """Clear a hazard of a command. Return RELEASE if nothing else blocks it."""
    entry.hazards -= 1
    if entry.hazards:
        return 0
    entry.hazards_clear = cycle
    return enqueue_released(issue, entry)


def release_listed(issue: Issue, dependency: Dependency | None, cycle: int) -> int:
    """Release the commands of a list of dependencies."""
    requests = 0
    while dependency is not None:
        following = dependency.next
        requests = requests | release(issue, dependency.waiter, cycle)
        dependency.next = issue.free_dependencies
        issue.free_dependencies = dependency
        issue.spare_dependencies += 1
        dependency = following
    return requests


def release_wide(issue: Issue, older: Access, at_end: bool, cycle: int) -> int:
    """Release commands that wait for an access without a list entry."""
    requests = 0
    previous = None
    access = issue.unlisted
    while access is not None:
        if (
            (access.written or older.written) and access.entry is not older.entry
            and access.cover <= older.id < access.id <= older.successor
            and waits_for_end(access, older) == at_end and conflicts(access, older)
        ):  # fmt: skip
            requests = requests | release(issue, access.entry, cycle)
        if access.entry.hazards:
            previous = access
        elif previous is None:
            issue.unlisted = access.next_unlisted
        else:
            previous.next_unlisted = access.next_unlisted
        access = access.next_unlisted
    return requests


def end_hazards(issue: Issue, entry: Entry, cycle: int) -> int:
    """Clear hazards on a command that has ended: its operands are read, and its results can be forwarded."""
    requests = release_listed(issue, entry.after_end, cycle)
    entry.after_end = None
    access = entry.accesses
    while access is not None:
        if issue.unlisted is not None:
            requests = requests | release_wide(issue, access, True, cycle)
        if not access.written:
            detach(issue, access)
        access = access.next
    return requests


def retire_hazards(issue: Issue, entry: Entry, cycle: int) -> int:
    """Clear hazards on a command whose results are in memory, and free its accesses."""
    requests = release_listed(issue, entry.after_retirement, cycle)
    entry.after_retirement = None
    access = entry.accesses
    entry.accesses = None
    while access is not None:
        following = access.next
        if issue.unlisted is not None:
            requests = requests | release_wide(issue, access, False, cycle)
        detach(issue, access)
        access.next = issue.free_accesses
        issue.free_accesses = access
        issue.spare_accesses += 1
        access = following
    return requests

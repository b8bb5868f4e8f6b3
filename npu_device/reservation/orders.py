"""Decode cache: decoded descriptors in tile form ("orders") by their bytes, in the native subset."""

from npu_device.memory.region import OPERAND_WORDS
from npu_device.reservation.accumulators import bind_sum
from npu_device.reservation.state import ORDER_BUCKETS, ORDER_WORDS, Issue, Submission, TileOrder


def mix(mixed: int, word: int) -> int:
    """Add a word to the hash of a descriptor."""
    return ((mixed << 5) ^ (mixed >> 11) ^ word ^ (word >> 8) ^ (word >> 16) ^ (word >> 32)) & 0xFFFF_FFFF


def bucket_of(mixed: int) -> int:
    """Return the bucket of a hash."""
    return (mixed ^ (mixed >> 10) ^ (mixed >> 20)) & (ORDER_BUCKETS - 1)


def find_order(issue: Issue, submission: Submission) -> TileOrder | None:
    """Return the order of a descriptor, or None on a miss. Macro forms, BARRIER and CORE are never cached."""
    mixed = 0
    for index in range(ORDER_WORDS):
        mixed = mix(mixed, submission.words[index])
    order = issue.order_buckets[bucket_of(mixed)]
    while order is not None:
        index = 0
        while index < ORDER_WORDS and order.words[index] == submission.words[index]:
            index += 1
        if index == ORDER_WORDS:
            return order
        order = order.next
    return None


def add_order(issue: Issue) -> TileOrder | None:
    """Add an order for the descriptor words in `issue.operands`. The caller has reserved a record, and fills in the
    other fields."""
    order = issue.free_orders
    if order is None:
        return None
    issue.free_orders = order.next
    issue.spare_orders -= 1
    mixed = 0
    for index in range(ORDER_WORDS):
        order.words[index] = issue.operands[index]
        mixed = mix(mixed, issue.operands[index])
    issue.operands.clear()
    bucket = bucket_of(mixed)
    order.next = issue.order_buckets[bucket]
    issue.order_buckets[bucket] = order
    return order


def clear_orders(issue: Issue) -> None:
    """Empty the cache."""
    for bucket in range(ORDER_BUCKETS):
        order = issue.order_buckets[bucket]
        issue.order_buckets[bucket] = None
        while order is not None:
            following = order.next
            order.next = issue.free_orders
            issue.free_orders = order
            issue.spare_orders += 1
            order = following


def load_operands(issue: Issue, order: TileOrder) -> int:
    """Load the operands of an order and its sum into `issue.operands`, reads before writes. Return the unit class,
    which depends on the engine of the sum."""
    issue.operands.clear()
    unit_class = order.unit_class
    first = 0
    while first < len(order.operands) and not order.operands[first + OPERAND_WORDS - 1]:
        first += OPERAND_WORDS
    for index in range(first):
        issue.operands.append(order.operands[index])
    if order.total.rows:
        unit_class += bind_sum(issue, order.total) + 1 - order.total.affinity
    for index in range(first, len(order.operands)):
        issue.operands.append(order.operands[index])
    return unit_class

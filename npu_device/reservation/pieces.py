"""Work of tile commands by all that it depends on, in the native subset: a hash table of pieces."""

from npu_device.cost.piece_record import PieceRecord
from npu_device.decode.tile_state import KEY_WORDS, TileDecoder
from npu_device.reservation.state import PIECE_BUCKETS, Issue


def bucket_of(tile: TileDecoder) -> int:
    """Return the bucket of the work of the descriptor that was decoded last."""
    mixed = 0
    for word in tile.key:
        mixed = ((mixed << 5) ^ (mixed >> 11) ^ word ^ (word >> 8) ^ (word >> 16) ^ (word >> 32)) & 0xFFFF_FFFF
    return (mixed ^ (mixed >> 10) ^ (mixed >> 20)) & (PIECE_BUCKETS - 1)


def find_piece(issue: Issue, tile: TileDecoder) -> PieceRecord | None:
    """Return the work of the descriptor that was decoded last; None: it is not in the table."""
    entry = issue.piece_buckets[bucket_of(tile)]
    while entry is not None:
        index = 0
        while index < KEY_WORDS and entry.key[index] == tile.key[index]:
            index += 1
        if index == KEY_WORDS:
            return entry.piece
        entry = entry.next
    return None


def add_piece(issue: Issue, tile: TileDecoder, piece: PieceRecord) -> None:
    """Add the work of the descriptor that was decoded last. The caller has reserved a record."""
    entry = issue.free_pieces
    if entry is None:
        return
    issue.free_pieces = entry.next
    issue.spare_pieces -= 1
    for index in range(KEY_WORDS):
        entry.key[index] = tile.key[index]
    entry.piece = piece
    bucket = bucket_of(tile)
    entry.next = issue.piece_buckets[bucket]
    issue.piece_buckets[bucket] = entry


def clear_pieces(issue: Issue) -> None:
    """Empty the table."""
    for bucket in range(PIECE_BUCKETS):
        entry = issue.piece_buckets[bucket]
        issue.piece_buckets[bucket] = None
        while entry is not None:
            following = entry.next
            entry.next = issue.free_pieces
            issue.free_pieces = entry
            issue.spare_pieces += 1
            entry = following

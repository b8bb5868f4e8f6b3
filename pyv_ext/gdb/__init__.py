"""A stub for GDB's remote serial protocol: debug the program of a hart with any GDB that knows RISC-V.

| module | layer |
|---|---|
| `packets` | bytes to packets and back |
| `registers` | what registers there are, for the target description |
| `points` | breakpoints and watchpoints in the engine and on the bus |
| `history` | going back in time by replay from snapshots |
| `pacing` | how often to look at the client and to take a snapshot |
| `debugger` | run control: what a debugger does, without a word about the protocol |
| `session` | the commands of the protocol, and the port |

Nothing here knows what devices the machine has: their registers and monitor commands are handed in as tables.
Debugging takes no simulated time: a run with a debugger attached is the same run.
"""

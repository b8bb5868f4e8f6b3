"""Where firmware spends its cycles, by function, source line and call stack (docs/debugging.md, "Profile")."""

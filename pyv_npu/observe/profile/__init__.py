"""Profile of firmware by function, source line and call stack (docs/debugging.md, "Profile")."""

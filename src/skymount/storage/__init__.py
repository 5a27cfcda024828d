"""Plain files and SQLite databases, for portal, content and server alike."""

"""A portal's data in an object store and PostgreSQL, which many processes share."""

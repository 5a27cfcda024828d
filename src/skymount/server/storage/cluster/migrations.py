"""The tables of the shared database, as steps from one version to the next. No IO.

A step only adds, so that portals of the version before go on beside newer ones: `OLDEST` is the
version that a portal has to know at least. A step that breaks this raises it.
"""

from enum import Enum, auto

STEPS = (
    """
CREATE TABLE entries (
    id bytea PRIMARY KEY,
    public_key bytea NOT NULL,
    tweak bytea NOT NULL,
    data bytea NOT NULL,
    revision bytea NOT NULL,
    kind smallint NOT NULL,
    signature bytea NOT NULL,
    work bytea NOT NULL
);
CREATE INDEX entries_by_key ON entries (public_key, tweak);
CREATE TABLE skyfiles (
    skylink text COLLATE "C" PRIMARY KEY,
    root bytea NOT NULL,
    name text NOT NULL,
    folded text NOT NULL,
    size bigint NOT NULL,
    kept bigint NOT NULL,
    files bigint NOT NULL,
    is_encrypted boolean NOT NULL,
    stored double precision NOT NULL
);
CREATE INDEX skyfiles_by_root ON skyfiles (root);
CREATE INDEX skyfiles_by_time ON skyfiles (stored DESC, skylink);
CREATE TABLE sectors (
    root bytea NOT NULL,
    skylink text COLLATE "C" NOT NULL REFERENCES skyfiles ON DELETE CASCADE,
    PRIMARY KEY (root, skylink)
);
CREATE INDEX sectors_by_skyfile ON sectors (skylink);
CREATE TABLE swept (
    root bytea PRIMARY KEY,
    removed timestamptz
);
CREATE TABLE skykeys (
    id text PRIMARY KEY,
    number bigint GENERATED ALWAYS AS IDENTITY,
    sealed bytea NOT NULL
);
CREATE TABLE skykeys_state (
    is_only boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    version bigint NOT NULL,
    sealed_check bytea
);
INSERT INTO skykeys_state (version) VALUES (0);
CREATE TABLE zone (
    is_only boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    content bytea NOT NULL
);
INSERT INTO zone (content) VALUES ('')
""",
    """
CREATE TABLE shared_state (
    is_only boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    secret bytea NOT NULL,
    swept timestamptz NOT NULL DEFAULT '-infinity'
);
INSERT INTO shared_state (secret) VALUES (
    decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex')
)
""",
    # Triggers, as portals of the version before have to count too. Of many slots two transactions
    # rarely need the same one. A statement takes it last, after all its rows, so that two
    # never wait for each other.
    """
CREATE TABLE pins (
    skylink text COLLATE "C" PRIMARY KEY,
    reason text NOT NULL,
    pinned double precision NOT NULL
);
CREATE TABLE removals (
    skylink text COLLATE "C" PRIMARY KEY,
    until timestamptz NOT NULL
);
CREATE TABLE totals (
    slot integer PRIMARY KEY,
    skyfiles bigint NOT NULL DEFAULT 0,
    bytes numeric NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
INSERT INTO totals (slot) SELECT generate_series(0, 63);
CREATE FUNCTION skyfile_stored() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM removals WHERE skylink = NEW.skylink AND until > clock_timestamp()) THEN
        RAISE 'this skyfile is being removed: upload it again in five minutes';
    END IF;
    IF TG_OP = 'INSERT' THEN
        UPDATE totals SET skyfiles = skyfiles + 1, bytes = bytes + NEW.kept
        WHERE slot = pg_backend_pid() % 64;
    END IF;
    RETURN NULL;
END
$$;
CREATE FUNCTION skyfiles_removed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE totals SET skyfiles = skyfiles - removed.number, bytes = bytes - removed.size
    FROM (SELECT count(*) AS number, sum(kept) AS size FROM old_rows) AS removed
    WHERE slot = pg_backend_pid() % 64 AND removed.number > 0;
    RETURN NULL;
END
$$;
CREATE TRIGGER stored AFTER INSERT OR UPDATE ON skyfiles
    FOR EACH ROW EXECUTE FUNCTION skyfile_stored();
CREATE TRIGGER removed AFTER DELETE ON skyfiles
    REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION skyfiles_removed();
UPDATE totals SET skyfiles = counted.number, bytes = counted.size
FROM (SELECT count(*) AS number, coalesce(sum(kept), 0) AS size FROM skyfiles) AS counted
WHERE slot = 0
""",
)

VERSION = len(STEPS)
OLDEST = 1


class Tables(Enum):
    """What may be done to tables that are not of this version."""

    KEEP = auto()
    """Nothing: portals of an earlier version may use them."""
    MAKE = auto()
    """Make them in a database without any."""
    UPDATE = auto()
    """Bring them up to date, too."""

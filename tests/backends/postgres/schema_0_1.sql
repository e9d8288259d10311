-- fencepost's locks in Postgres, schema version 1.
--
-- The backend runs this by itself on first use, in one transaction. Where its role may not create a
-- schema, the owner of the database runs it once, and grants the role of the programs what they need:
--   GRANT USAGE ON SCHEMA fencepost TO app;
--   GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA fencepost TO app;
--   GRANT USAGE ON ALL SEQUENCES IN SCHEMA fencepost TO app;
--
-- Every change to a lock or to its queue is made while its row is locked. Whatever depends on time is
-- read with clock_timestamp() after that: now() is the instant at which a blocked request began.

CREATE SCHEMA IF NOT EXISTS fencepost;

-- A lock's row is kept when it is released: it remembers the last token, and the floor that it was bumped to.
CREATE TABLE fencepost.lock (
    name    text COLLATE "C" PRIMARY KEY,
    token   bigint NOT NULL DEFAULT 0,
    floor   bigint NOT NULL DEFAULT 0,
    holder  text,
    expires timestamptz NOT NULL DEFAULT clock_timestamp(),
    waiters bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

-- A process that waits: known as dead once it no longer says otherwise, or once its listening session
-- has let go of the advisory lock on its id.
CREATE TABLE fencepost.process (
    id      bigint PRIMARY KEY,
    listens boolean NOT NULL,
    until   timestamptz NOT NULL
);

CREATE TABLE fencepost.waiter (
    ticket  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name    text COLLATE "C" NOT NULL,
    holder  text NOT NULL UNIQUE,
    ttl     double precision NOT NULL,
    process bigint NOT NULL
);
CREATE INDEX waiter_in_line ON fencepost.waiter (name, ticket);
CREATE INDEX waiter_of_process ON fencepost.waiter (process);

CREATE FUNCTION fencepost.version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 1';

-- Microseconds since 1970.
CREATE FUNCTION fencepost.us(instant timestamptz) RETURNS bigint LANGUAGE sql STABLE AS
    'SELECT (extract(epoch FROM instant) * 1000000)::bigint';

-- The next token. It follows the clock, so that it does not run backwards when a restored or promoted
-- server has forgotten the last ones; and it never depends on the clock alone.
CREATE FUNCTION fencepost.mint(token bigint, floor bigint) RETURNS bigint LANGUAGE sql VOLATILE AS
    'SELECT greatest(token + 1, floor + 1, fencepost.us(clock_timestamp()))';

CREATE FUNCTION fencepost.alive(_process bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    _it fencepost.process;
BEGIN
    SELECT * INTO _it FROM fencepost.process WHERE id = _process;
    IF NOT FOUND THEN
        RETURN false;
    ELSIF pg_postmaster_start_time() > clock_timestamp() - interval '5 seconds' THEN
        RETURN true;  -- the server has just started: give everybody time to come back
    ELSIF _it.until <= clock_timestamp() THEN
        RETURN false;
    END IF;
    RETURN NOT _it.listens OR NOT pg_try_advisory_xact_lock_shared(_process);
END $$;

-- Give a lock, whose row is locked and whose holder is gone, to its first live waiter, and tell it so;
-- or else leave it free. The others mind the deadline that they know: one that is earlier is told to them.
CREATE FUNCTION fencepost.hand_on(_lock fencepost.lock) RETURNS fencepost.lock LANGUAGE plpgsql AS $$
DECLARE
    _next fencepost.waiter;
    _gone bigint := 0;
    _known timestamptz := _lock.expires;
BEGIN
    WHILE _lock.waiters > 0 LOOP
        DELETE FROM fencepost.waiter WHERE ticket = (
            SELECT ticket FROM fencepost.waiter WHERE name = _lock.name ORDER BY ticket LIMIT 1
        ) RETURNING * INTO _next;
        EXIT WHEN NOT FOUND;
        _gone := _gone + 1;
        IF fencepost.alive(_next.process) THEN
            UPDATE fencepost.lock
                SET token = fencepost.mint(token, floor), holder = _next.holder, waiters = waiters - _gone,
                    expires = clock_timestamp() + _next.ttl * interval '1 second'
                WHERE name = _lock.name RETURNING * INTO _lock;
            PERFORM pg_notify(
                'fencepost_' || _next.process,
                concat_ws(' ', _next.holder, _lock.token, fencepost.us(_lock.expires), _lock.name)
            );
            IF _lock.waiters > 0 AND _lock.expires < _known THEN
                PERFORM pg_notify(
                    'fencepost_' || process, concat_ws(' ', '-', 0, fencepost.us(_lock.expires), _lock.name)
                ) FROM (SELECT DISTINCT process FROM fencepost.waiter WHERE name = _lock.name) AS each;
            END IF;
            RETURN _lock;
        END IF;
    END LOOP;
    UPDATE fencepost.lock SET holder = NULL, waiters = 0, expires = clock_timestamp()
        WHERE name = _lock.name RETURNING * INTO _lock;
    RETURN _lock;
END $$;

-- Grant the lock, or join its queue unless _queue is NULL. Answers
--   {token}                  granted right now;
--   {token, clock, expires}  granted earlier, to this same holder;
--   {0, clock, expires}      queued;
--   {-1}                     held by somebody else;
--   {-2}                     _queue others wait already;
--   {-3}                     held by somebody else, and without a _process nobody could be woken.
CREATE FUNCTION fencepost.take(_name text, _holder text, _ttl double precision, _queue bigint, _process bigint)
RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    _lock fencepost.lock;
    _token bigint;
BEGIN
    -- An update that had to wait for the row evaluates itself anew on what it finds there.
    UPDATE fencepost.lock
        SET token = fencepost.mint(token, floor), holder = _holder, expires = clock_timestamp() + _ttl * interval '1 second'
        WHERE name = _name AND holder IS NULL AND waiters = 0 RETURNING token INTO _token;
    IF FOUND THEN
        RETURN ARRAY[_token];
    END IF;
    IF _queue IS NULL AND EXISTS (
        SELECT 1 FROM fencepost.lock WHERE name = _name AND holder <> _holder AND expires > clock_timestamp()
    ) THEN
        RETURN ARRAY[-1];
    END IF;
    LOOP
        SELECT * INTO _lock FROM fencepost.lock WHERE name = _name FOR UPDATE;
        EXIT WHEN FOUND;
        INSERT INTO fencepost.lock (name) VALUES (_name) ON CONFLICT DO NOTHING;
    END LOOP;
    IF _lock.holder IS NULL OR _lock.expires <= clock_timestamp() THEN
        _lock := fencepost.hand_on(_lock);
        IF _lock.holder IS NULL THEN
            UPDATE fencepost.lock
                SET token = fencepost.mint(token, floor), holder = _holder,
                    expires = clock_timestamp() + _ttl * interval '1 second'
                WHERE name = _name RETURNING token INTO _token;
            RETURN ARRAY[_token];
        END IF;
    END IF;
    IF _lock.holder = _holder THEN
        RETURN ARRAY[_lock.token, fencepost.us(clock_timestamp()), fencepost.us(_lock.expires)];
    ELSIF _queue IS NULL THEN
        RETURN ARRAY[-1];
    ELSIF _process IS NULL THEN
        RETURN ARRAY[-3];
    END IF;
    IF NOT EXISTS (SELECT 1 FROM fencepost.waiter WHERE holder = _holder) THEN
        IF _lock.waiters >= _queue THEN
            DELETE FROM fencepost.waiter WHERE name = _name AND process IN (
                SELECT process FROM (SELECT DISTINCT process FROM fencepost.waiter WHERE name = _name) AS each
                WHERE NOT fencepost.alive(process)
            );
            SELECT count(*) INTO _lock.waiters FROM fencepost.waiter WHERE name = _name;
            IF _lock.waiters >= _queue THEN
                UPDATE fencepost.lock SET waiters = _lock.waiters WHERE name = _name;
                RETURN ARRAY[-2];
            END IF;
        END IF;
        INSERT INTO fencepost.waiter (name, holder, ttl, process) VALUES (_name, _holder, _ttl, _process);
        UPDATE fencepost.lock SET waiters = _lock.waiters + 1 WHERE name = _name;
    ELSE
        UPDATE fencepost.waiter SET process = _process WHERE holder = _holder AND process <> _process;
    END IF;
    RETURN ARRAY[0, fencepost.us(clock_timestamp()), fencepost.us(_lock.expires)];
END $$;

-- Free the lock if it is this holder's under this token; whether it had not expired by then.
CREATE FUNCTION fencepost.release(_name text, _holder text, _token bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    _lock fencepost.lock;
    _held boolean;
BEGIN
    UPDATE fencepost.lock SET holder = NULL, expires = clock_timestamp()
        WHERE name = _name AND holder = _holder AND token = _token AND waiters = 0 AND expires > clock_timestamp();
    IF FOUND THEN
        -- A crash that loses this release leaves the lock to its ttl, and a later grant's commit keeps it.
        PERFORM set_config('synchronous_commit', 'off', true);
        RETURN true;
    END IF;
    SELECT * INTO _lock FROM fencepost.lock WHERE name = _name AND holder = _holder AND token = _token FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    _held := _lock.expires > clock_timestamp();
    PERFORM fencepost.hand_on(_lock);
    RETURN _held;
END $$;

CREATE FUNCTION fencepost.leave(_name text, _holder text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    _lock fencepost.lock;
BEGIN
    PERFORM 1 FROM fencepost.lock WHERE name = _name FOR UPDATE;
    DELETE FROM fencepost.waiter WHERE holder = _holder;
    IF FOUND THEN
        UPDATE fencepost.lock SET waiters = greatest(waiters - 1, 0) WHERE name = _name;
    END IF;
    SELECT * INTO _lock FROM fencepost.lock WHERE name = _name AND holder = _holder;
    IF FOUND THEN
        PERFORM fencepost.hand_on(_lock);
    END IF;
END $$;

-- Extend holds; the places, from 1, of those that were still there.
CREATE FUNCTION fencepost.renew(_names text[], _holders text[], _tokens bigint[], _ttls double precision[])
RETURNS SETOF bigint LANGUAGE sql AS $$
    UPDATE fencepost.lock SET expires = clock_timestamp() + held.ttl * interval '1 second'
        FROM unnest(_names, _holders, _tokens, _ttls) WITH ORDINALITY AS held (name, holder, token, ttl, place)
        WHERE lock.name = held.name AND lock.holder = held.holder AND lock.token = held.token
            AND lock.expires > clock_timestamp()
        RETURNING held.place
$$;

-- The held locks, or only the one called _name, with the seconds left and the waiters in order.
CREATE FUNCTION fencepost.status(_name text, _prefix text)
RETURNS TABLE (name text, holder text, token bigint, remaining double precision, waiters text[]) LANGUAGE sql AS $$
    SELECT name, holder, token, extract(epoch FROM expires - clock_timestamp())::double precision,
            ARRAY(SELECT waiter.holder FROM fencepost.waiter WHERE waiter.name = lock.name ORDER BY ticket)
        FROM fencepost.lock
        WHERE holder IS NOT NULL AND expires > clock_timestamp()
            AND CASE WHEN _name IS NULL THEN starts_with(name, _prefix) ELSE name = _name END
        ORDER BY name
$$;

CREATE FUNCTION fencepost.evict(_name text)
RETURNS TABLE (name text, holder text, token bigint, remaining double precision, waiters text[]) LANGUAGE plpgsql AS $$
DECLARE
    _lock fencepost.lock;
BEGIN
    SELECT * INTO _lock FROM fencepost.lock WHERE lock.name = _name FOR UPDATE;
    RETURN QUERY SELECT * FROM fencepost.status(_name, '');
    IF FOUND THEN
        PERFORM fencepost.hand_on(_lock);
    END IF;
END $$;

CREATE FUNCTION fencepost.bump(_name text, _above bigint) RETURNS void LANGUAGE sql AS $$
    INSERT INTO fencepost.lock (name, floor) VALUES (_name, _above)
        ON CONFLICT (name) DO UPDATE SET floor = greatest(lock.floor, _above)
$$;

-- A process says that it lives, for _window seconds; the holders of its waiters that are still in line.
CREATE FUNCTION fencepost.beat(_id bigint, _listens boolean, _window double precision)
RETURNS SETOF text LANGUAGE sql AS $$
    INSERT INTO fencepost.process VALUES (_id, _listens, clock_timestamp() + _window * interval '1 second')
        ON CONFLICT (id) DO UPDATE SET listens = excluded.listens, until = excluded.until;
    SELECT holder FROM fencepost.waiter WHERE process = _id;
$$;

-- A process that had to open another session is known by another id from now on.
CREATE FUNCTION fencepost.rename(_old bigint, _new bigint) RETURNS void LANGUAGE sql AS $$
    UPDATE fencepost.waiter SET process = _new WHERE process = _old;
    DELETE FROM fencepost.process WHERE id = _old;
$$;

-- Forget the processes that ended without a word.
CREATE FUNCTION fencepost.tidy() RETURNS void LANGUAGE sql AS $$
    DELETE FROM fencepost.process WHERE until < clock_timestamp() - interval '1 day'
$$;

-- Forget locks that nobody has used for as long as _idle. Their next tokens are still larger, because
-- tokens follow the clock: safe unless the server's clock is set back by more than _idle.
CREATE FUNCTION fencepost.prune(_idle interval) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    _gone bigint;
BEGIN
    DELETE FROM fencepost.lock
        WHERE holder IS NULL AND waiters = 0 AND expires < clock_timestamp() - _idle
            AND greatest(token, floor) < fencepost.us(clock_timestamp());
    GET DIAGNOSTICS _gone = ROW_COUNT;
    RETURN _gone;
END $$;

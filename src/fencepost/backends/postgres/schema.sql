-- fencepost's locks in Postgres, schema version 1, revision 5.
--
-- The backend runs this by itself on first use, in one transaction, and again where it finds an earlier revision:
-- it makes what is not there yet, and replaces every function. Where its role may not do that, the owner of
-- the database runs it (psql -1 -f), and grants the role of the programs, once, what they need:
--   GRANT USAGE ON SCHEMA fencepost TO app;
--   GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA fencepost TO app;
--   GRANT USAGE ON ALL SEQUENCES IN SCHEMA fencepost TO app;
--   GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA fencepost TO app;
-- The last one is for databases where ALTER DEFAULT PRIVILEGES has revoked EXECUTE from PUBLIC. Where this file is run
-- again, it grants by itself what is new to those who have the others.
--
-- Every change to a lock or to its queue is made while its row is locked. Whatever depends on time is
-- read with clock_timestamp() after that: now() is the instant at which a blocked request began.

CREATE SCHEMA IF NOT EXISTS fencepost;

-- A lock's row is kept when it is released: it remembers the last token, and the floor that it was bumped to.
-- The holder of a shared lock is '', and it expires when the first of its sharers may.
CREATE TABLE IF NOT EXISTS fencepost.lock (
    name    text COLLATE "C" PRIMARY KEY,
    token   bigint NOT NULL DEFAULT 0,
    floor   bigint NOT NULL DEFAULT 0,
    holder  text,
    expires timestamptz NOT NULL DEFAULT clock_timestamp(),
    waiters bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

-- A process that waits: known as dead once it no longer says otherwise, or once its listening session
-- has let go of the advisory lock on its id.
CREATE TABLE IF NOT EXISTS fencepost.process (
    id      bigint PRIMARY KEY,
    listens boolean NOT NULL,
    until   timestamptz NOT NULL
);

CREATE TABLE IF NOT EXISTS fencepost.waiter (
    ticket  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name    text COLLATE "C" NOT NULL,
    holder  text NOT NULL UNIQUE,
    ttl     double precision NOT NULL,
    process bigint NOT NULL
);
-- How many sharers there may be at most, with this one; NULL: it wants the lock for itself.
ALTER TABLE fencepost.waiter ADD COLUMN IF NOT EXISTS share integer;
CREATE INDEX IF NOT EXISTS waiter_in_line ON fencepost.waiter (name, ticket);
CREATE INDEX IF NOT EXISTS waiter_of_process ON fencepost.waiter (process);

-- A sharer of a lock whose holder is ''; others have none.
CREATE TABLE IF NOT EXISTS fencepost.share (
    name    text COLLATE "C",
    holder  text,
    token   bigint NOT NULL,
    expires timestamptz NOT NULL,
    PRIMARY KEY (name, holder)
) WITH (fillfactor = 50);

-- The version is what a program must know, the revision what it may use besides: programs made for an earlier
-- revision go on working with a later one.
CREATE OR REPLACE FUNCTION fencepost.version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 1';
CREATE OR REPLACE FUNCTION fencepost.revision() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 5';

-- Microseconds since 1970.
CREATE OR REPLACE FUNCTION fencepost.us(instant timestamptz) RETURNS bigint LANGUAGE sql STABLE AS
    'SELECT (extract(epoch FROM instant) * 1000000)::bigint';

-- The next token. It follows the clock, so that it does not run backwards when a restored or promoted
-- server has forgotten the last ones; and it never depends on the clock alone.
CREATE OR REPLACE FUNCTION fencepost.mint(token bigint, floor bigint) RETURNS bigint LANGUAGE sql VOLATILE AS
    'SELECT greatest(token + 1, floor + 1, fencepost.us(clock_timestamp()))';

CREATE OR REPLACE FUNCTION fencepost.alive(_process bigint) RETURNS boolean LANGUAGE plpgsql AS $$
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

-- Tell everybody who waits for a lock that it expires earlier than they know.
CREATE OR REPLACE FUNCTION fencepost.hasten(_lock fencepost.lock) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('fencepost_' || process, concat_ws(' ', '-', 0, fencepost.us(_lock.expires), _lock.name))
        FROM (SELECT DISTINCT process FROM fencepost.waiter WHERE name = _lock.name) AS each;
END $$;

-- Let one more share a lock, whose row is locked, and tell it so if it waited. The caller writes the row.
CREATE OR REPLACE FUNCTION fencepost.seat(_lock fencepost.lock, _holder text, _ttl double precision, _process bigint)
RETURNS fencepost.lock LANGUAGE plpgsql AS $$
DECLARE
    _expires timestamptz := clock_timestamp() + _ttl * interval '1 second';
BEGIN
    _lock.token := fencepost.mint(_lock.token, _lock.floor);
    INSERT INTO fencepost.share (name, holder, token, expires) VALUES (_lock.name, _holder, _lock.token, _expires);
    IF _process IS NOT NULL THEN
        PERFORM pg_notify(
            'fencepost_' || _process,
            concat_ws(' ', _holder, _lock.token, fencepost.us(_expires), _lock.name)
        );
    END IF;
    RETURN _lock;
END $$;

-- Let in, beside those who share a lock whose row is locked, who may come from the head of its queue; forget the
-- dead there; and write the row. The others know the deadline _known.
CREATE OR REPLACE FUNCTION fencepost.admit(_lock fencepost.lock, _known timestamptz)
RETURNS fencepost.lock LANGUAGE plpgsql AS $$
DECLARE
    _next fencepost.waiter;
    _sharers bigint;
    _lives boolean;
BEGIN
    SELECT count(*) INTO _sharers FROM fencepost.share WHERE name = _lock.name;
    WHILE _lock.waiters > 0 LOOP
        SELECT * INTO _next FROM fencepost.waiter WHERE name = _lock.name ORDER BY ticket LIMIT 1 FOR UPDATE;
        IF NOT FOUND THEN
            _lock.waiters := 0;
            EXIT;
        END IF;
        _lives := fencepost.alive(_next.process);
        EXIT WHEN _lives AND (_next.share IS NULL OR _sharers >= _next.share);
        DELETE FROM fencepost.waiter WHERE ticket = _next.ticket;
        _lock.waiters := _lock.waiters - 1;
        IF _lives THEN
            _lock := fencepost.seat(_lock, _next.holder, _next.ttl, _next.process);
            _sharers := _sharers + 1;
        END IF;
    END LOOP;
    UPDATE fencepost.lock
        SET token = _lock.token, holder = '', waiters = _lock.waiters,
            expires = (SELECT min(share.expires) FROM fencepost.share WHERE share.name = _lock.name)
        WHERE name = _lock.name RETURNING * INTO _lock;
    IF _lock.waiters > 0 AND _lock.expires < _known THEN
        PERFORM fencepost.hasten(_lock);
    END IF;
    RETURN _lock;
END $$;

-- Give a lock, whose row is locked and whose holder is gone, to its first live waiter, and tell it so;
-- or else leave it free. One who shares takes those behind it along, and a lock that still has sharers takes more.
-- The others mind the deadline that they know: one that is earlier is told to them.
-- A waiter of the process _mine, whose row then says who it is, is not notified: that process has the answer to this.
CREATE OR REPLACE FUNCTION fencepost.hand_on(_lock fencepost.lock, _mine bigint)
RETURNS fencepost.lock LANGUAGE plpgsql AS $$
DECLARE
    _next fencepost.waiter;
    _gone bigint := 0;
    _known timestamptz := _lock.expires;
BEGIN
    IF _lock.holder = '' THEN
        DELETE FROM fencepost.share WHERE name = _lock.name AND expires <= clock_timestamp();
        IF EXISTS (SELECT 1 FROM fencepost.share WHERE name = _lock.name) THEN
            RETURN fencepost.admit(_lock, _known);
        END IF;
    END IF;
    WHILE _lock.waiters > 0 LOOP
        DELETE FROM fencepost.waiter WHERE ticket = (
            SELECT ticket FROM fencepost.waiter WHERE name = _lock.name ORDER BY ticket LIMIT 1
        ) RETURNING * INTO _next;
        EXIT WHEN NOT FOUND;
        _gone := _gone + 1;
        IF _next.process = _mine OR fencepost.alive(_next.process) THEN
            IF _next.share IS NOT NULL THEN
                _lock.waiters := _lock.waiters - _gone;
                RETURN fencepost.admit(fencepost.seat(_lock, _next.holder, _next.ttl, _next.process), _known);
            END IF;
            UPDATE fencepost.lock
                SET token = fencepost.mint(token, floor), holder = _next.holder, waiters = waiters - _gone,
                    expires = clock_timestamp() + _next.ttl * interval '1 second'
                WHERE name = _lock.name RETURNING * INTO _lock;
            IF _next.process IS DISTINCT FROM _mine THEN
                PERFORM pg_notify(
                    'fencepost_' || _next.process,
                    concat_ws(' ', _next.holder, _lock.token, fencepost.us(_lock.expires), _lock.name)
                );
            END IF;
            IF _lock.waiters > 0 AND _lock.expires < _known THEN
                PERFORM fencepost.hasten(_lock);
            END IF;
            RETURN _lock;
        END IF;
    END LOOP;
    UPDATE fencepost.lock SET holder = NULL, waiters = 0, expires = clock_timestamp()
        WHERE name = _lock.name RETURNING * INTO _lock;
    RETURN _lock;
END $$;

CREATE OR REPLACE FUNCTION fencepost.hand_on(_lock fencepost.lock) RETURNS fencepost.lock LANGUAGE plpgsql AS $$
BEGIN
    RETURN fencepost.hand_on(_lock, NULL);
END $$;

-- Join the queue of a lock, whose row is locked, unless one has a place there; answers as take() does.
CREATE OR REPLACE FUNCTION fencepost.line_up(
    _lock fencepost.lock, _holder text, _ttl double precision, _share integer, _queue bigint, _process bigint
) RETURNS bigint[] LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM fencepost.waiter WHERE holder = _holder) THEN
        IF _lock.waiters >= _queue THEN
            DELETE FROM fencepost.waiter WHERE name = _lock.name AND process IN (
                SELECT process FROM (SELECT DISTINCT process FROM fencepost.waiter WHERE name = _lock.name) AS each
                WHERE NOT fencepost.alive(process)
            );
            SELECT count(*) INTO _lock.waiters FROM fencepost.waiter WHERE name = _lock.name;
            IF _lock.waiters >= _queue THEN
                UPDATE fencepost.lock SET waiters = _lock.waiters WHERE name = _lock.name;
                RETURN ARRAY[-2];
            END IF;
        END IF;
        INSERT INTO fencepost.waiter (name, holder, ttl, process, share)
            VALUES (_lock.name, _holder, _ttl, _process, _share);
        UPDATE fencepost.lock SET waiters = _lock.waiters + 1 WHERE name = _lock.name;
    ELSE
        UPDATE fencepost.waiter SET process = _process WHERE holder = _holder AND process <> _process;
    END IF;
    RETURN ARRAY[0, fencepost.us(clock_timestamp()), fencepost.us(_lock.expires)];
END $$;

-- Grant the lock, or join its queue unless _queue is NULL. Answers
--   {token}                  granted right now;
--   {token, clock, expires}  granted earlier, to this same holder;
--   {0, clock, expires}      queued;
--   {-1}                     held by somebody else;
--   {-2}                     _queue others wait already;
--   {-3}                     held by somebody else, and without a _process nobody could be woken.
CREATE OR REPLACE FUNCTION fencepost.take(
    _name text, _holder text, _ttl double precision, _queue bigint, _process bigint
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    _lock fencepost.lock;
    _token bigint;
BEGIN
    -- An update that had to wait for the row is evaluated again on what it finds there.
    UPDATE fencepost.lock
        SET token = fencepost.mint(token, floor), holder = _holder,
            expires = clock_timestamp() + _ttl * interval '1 second'
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
    RETURN fencepost.line_up(_lock, _holder, _ttl, NULL, _queue, _process);
END $$;

-- The same, of a share of the lock beside fewer than _limit others.
CREATE OR REPLACE FUNCTION fencepost.take_share(
    _name text, _holder text, _ttl double precision, _limit integer, _queue bigint, _process bigint
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    _lock fencepost.lock;
    _mine fencepost.share;
BEGIN
    LOOP
        SELECT * INTO _lock FROM fencepost.lock WHERE name = _name FOR UPDATE;
        EXIT WHEN FOUND;
        INSERT INTO fencepost.lock (name) VALUES (_name) ON CONFLICT DO NOTHING;
    END LOOP;
    IF _lock.holder IS NOT NULL AND _lock.expires <= clock_timestamp()
            OR coalesce(_lock.holder, '') = '' AND _lock.waiters > 0 THEN
        _lock := fencepost.hand_on(_lock);
    END IF;
    SELECT * INTO _mine FROM fencepost.share WHERE name = _name AND holder = _holder;
    IF FOUND THEN
        RETURN ARRAY[_mine.token, fencepost.us(clock_timestamp()), fencepost.us(_mine.expires)];
    ELSIF coalesce(_lock.holder, '') = '' AND _lock.waiters = 0
            AND (SELECT count(*) FROM fencepost.share WHERE name = _name) < _limit THEN
        _lock := fencepost.admit(fencepost.seat(_lock, _holder, _ttl, NULL), _lock.expires);
        RETURN ARRAY[_lock.token];
    ELSIF _queue IS NULL THEN
        RETURN ARRAY[-1];
    ELSIF _process IS NULL THEN
        RETURN ARRAY[-3];
    END IF;
    RETURN fencepost.line_up(_lock, _holder, _ttl, _limit, _queue, _process);
END $$;

-- Free a share if it is this holder's under this token; whether it had not expired by then.
CREATE OR REPLACE FUNCTION fencepost.part(_name text, _holder text, _token bigint)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    _lock fencepost.lock;
    _held boolean;
BEGIN
    SELECT * INTO _lock FROM fencepost.lock WHERE name = _name AND holder = '' FOR UPDATE;
    DELETE FROM fencepost.share WHERE name = _lock.name AND holder = _holder AND token = _token
        RETURNING expires > clock_timestamp() INTO _held;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF _lock.waiters = 0 THEN
        PERFORM set_config('synchronous_commit', 'off', true);  -- as in release()
    END IF;
    PERFORM fencepost.hand_on(_lock);
    RETURN _held;
END $$;

-- Free the lock, or the share of it, that is this holder's under this token; whether it had not expired by then.
CREATE OR REPLACE FUNCTION fencepost.release(_name text, _holder text, _token bigint)
RETURNS boolean LANGUAGE plpgsql AS $$
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
        RETURN fencepost.part(_name, _holder, _token);
    END IF;
    _held := _lock.expires > clock_timestamp();
    PERFORM fencepost.hand_on(_lock);
    RETURN _held;
END $$;

-- The same, for a process that has waiters of the lock itself: 't' or 'f', and after it, if somebody holds the lock
-- alone now, its holder, its token, when it expires, and the clock.
CREATE OR REPLACE FUNCTION fencepost.hand_over(_name text, _holder text, _token bigint, _process bigint)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    _lock fencepost.lock;
    _held text;
BEGIN
    SELECT * INTO _lock FROM fencepost.lock WHERE name = _name AND holder = _holder AND token = _token FOR UPDATE;
    IF NOT FOUND THEN
        RETURN CASE WHEN fencepost.part(_name, _holder, _token) THEN 't' ELSE 'f' END;
    END IF;
    _held := CASE WHEN _lock.expires > clock_timestamp() THEN 't' ELSE 'f' END;
    _lock := fencepost.hand_on(_lock, _process);
    IF coalesce(_lock.holder, '') = '' THEN
        RETURN _held;
    END IF;
    RETURN concat_ws(
        ' ', _held, _lock.holder, _lock.token, fencepost.us(_lock.expires), fencepost.us(clock_timestamp())
    );
END $$;

CREATE OR REPLACE FUNCTION fencepost.leave(_name text, _holder text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    _lock fencepost.lock;
    _gone boolean;
BEGIN
    PERFORM 1 FROM fencepost.lock WHERE name = _name FOR UPDATE;
    DELETE FROM fencepost.waiter WHERE holder = _holder;
    _gone := FOUND;
    IF _gone THEN
        UPDATE fencepost.lock SET waiters = greatest(waiters - 1, 0) WHERE name = _name;
    END IF;
    SELECT * INTO _lock FROM fencepost.lock WHERE name = _name AND holder IN (_holder, '');
    IF _lock.holder = '' THEN
        DELETE FROM fencepost.share WHERE name = _name AND holder = _holder;
        IF FOUND OR _gone THEN
            PERFORM fencepost.hand_on(_lock);
        END IF;
    ELSIF _lock.holder = _holder THEN
        PERFORM fencepost.hand_on(_lock);
    END IF;
END $$;

-- Extend holds and shares; the places, from 1, of those that were still there.
CREATE OR REPLACE FUNCTION fencepost.renew(_names text[], _holders text[], _tokens bigint[], _ttls double precision[])
RETURNS SETOF bigint LANGUAGE sql AS $$
    WITH held AS (
        SELECT * FROM unnest(_names, _holders, _tokens, _ttls) WITH ORDINALITY AS held (name, holder, token, ttl, place)
    ), alone AS (
        UPDATE fencepost.lock SET expires = clock_timestamp() + held.ttl * interval '1 second'
            FROM held WHERE lock.name = held.name AND lock.holder = held.holder AND lock.token = held.token
                AND lock.expires > clock_timestamp()
            RETURNING held.place
    ), shared AS (
        UPDATE fencepost.share SET expires = clock_timestamp() + held.ttl * interval '1 second'
            FROM held WHERE share.name = held.name AND share.holder = held.holder AND share.token = held.token
                AND share.expires > clock_timestamp()
            RETURNING held.place
    )
    SELECT place FROM alone UNION ALL SELECT place FROM shared
$$;

-- The held locks, or only the one called _name, with the seconds left, the waiters in order, and the sharers.
CREATE OR REPLACE FUNCTION fencepost.held(_name text, _prefix text) RETURNS TABLE (
    name text, holder text, token bigint, remaining double precision, waiters text[], sharers text[]
) LANGUAGE sql AS $$
    SELECT lock.name, coalesce(shared.holders[1], lock.holder), coalesce(shared.token, lock.token),
            extract(epoch FROM coalesce(shared.expires, lock.expires) - clock_timestamp())::double precision,
            ARRAY(SELECT waiter.holder FROM fencepost.waiter WHERE waiter.name = lock.name ORDER BY ticket),
            coalesce(shared.holders, '{}')
        FROM fencepost.lock LEFT JOIN LATERAL (
            SELECT array_agg(share.holder ORDER BY share.token) AS holders, max(share.token) AS token,
                    max(share.expires) AS expires
                FROM fencepost.share WHERE share.name = lock.name AND share.expires > clock_timestamp()
        ) AS shared ON lock.holder = ''
        WHERE lock.holder IS NOT NULL
            AND CASE lock.holder WHEN '' THEN shared.holders IS NOT NULL ELSE lock.expires > clock_timestamp() END
            AND CASE WHEN _name IS NULL THEN starts_with(lock.name, _prefix) ELSE lock.name = _name END
        ORDER BY lock.name
$$;

-- Take the lock from its holder, or from all its sharers; what was ended. Revision 2 had another name for it.
DROP FUNCTION IF EXISTS fencepost.oust(text);
CREATE OR REPLACE FUNCTION fencepost.break_lock(_name text) RETURNS TABLE (
    name text, holder text, token bigint, remaining double precision, waiters text[], sharers text[]
) LANGUAGE plpgsql AS $$
DECLARE
    _lock fencepost.lock;
BEGIN
    SELECT * INTO _lock FROM fencepost.lock WHERE lock.name = _name FOR UPDATE;
    RETURN QUERY SELECT * FROM fencepost.held(_name, '');
    IF FOUND THEN
        DELETE FROM fencepost.share WHERE share.name = _name;
        PERFORM fencepost.hand_on(_lock);
    END IF;
END $$;

-- What programs made for revision 1 ask for instead of the two above.
CREATE OR REPLACE FUNCTION fencepost.status(_name text, _prefix text)
RETURNS TABLE (name text, holder text, token bigint, remaining double precision, waiters text[]) LANGUAGE sql AS
    'SELECT name, holder, token, remaining, waiters FROM fencepost.held(_name, _prefix)';
CREATE OR REPLACE FUNCTION fencepost.evict(_name text)
RETURNS TABLE (name text, holder text, token bigint, remaining double precision, waiters text[]) LANGUAGE sql AS
    'SELECT name, holder, token, remaining, waiters FROM fencepost.break_lock(_name)';

CREATE OR REPLACE FUNCTION fencepost.bump(_name text, _above bigint) RETURNS void LANGUAGE sql AS $$
    INSERT INTO fencepost.lock (name, floor) VALUES (_name, _above)
        ON CONFLICT (name) DO UPDATE SET floor = greatest(lock.floor, _above)
$$;

-- A process says that it lives, for _window seconds; the holders of its waiters that are still queued.
CREATE OR REPLACE FUNCTION fencepost.beat(_id bigint, _listens boolean, _window double precision)
RETURNS SETOF text LANGUAGE sql AS $$
    INSERT INTO fencepost.process VALUES (_id, _listens, clock_timestamp() + _window * interval '1 second')
        ON CONFLICT (id) DO UPDATE SET listens = excluded.listens, until = excluded.until;
    SELECT holder FROM fencepost.waiter WHERE process = _id;
$$;

-- A process that had to open another session is known by another id from now on.
CREATE OR REPLACE FUNCTION fencepost.rename(_old bigint, _new bigint) RETURNS void LANGUAGE sql AS $$
    UPDATE fencepost.waiter SET process = _new WHERE process = _old;
    DELETE FROM fencepost.process WHERE id = _old;
$$;

-- Forget the processes that ended without a word, and their waiters.
CREATE OR REPLACE FUNCTION fencepost.tidy() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    _name text;
BEGIN
    DELETE FROM fencepost.process WHERE until < clock_timestamp() - interval '1 day';
    FOR _name IN
        SELECT DISTINCT name FROM fencepost.waiter
            WHERE NOT EXISTS (SELECT 1 FROM fencepost.process WHERE id = waiter.process)
    LOOP
        -- A row that is in use is left to the next time: with several rows locked, this must not wait for another.
        PERFORM 1 FROM fencepost.lock WHERE name = _name FOR UPDATE SKIP LOCKED;
        IF FOUND THEN
            DELETE FROM fencepost.waiter
                WHERE name = _name AND NOT EXISTS (SELECT 1 FROM fencepost.process WHERE id = waiter.process);
            UPDATE fencepost.lock SET waiters = (SELECT count(*) FROM fencepost.waiter WHERE name = _name)
                WHERE name = _name;
        END IF;
    END LOOP;
END $$;

-- Forget locks that nobody has used for as long as _idle, also those whose holder never released them. Their next
-- tokens are still larger, because tokens follow the clock: safe unless the server's clock is set back by more
-- than _idle.
CREATE OR REPLACE FUNCTION fencepost.prune(_idle interval) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    _gone bigint;
BEGIN
    PERFORM fencepost.tidy();
    DELETE FROM fencepost.lock
        WHERE waiters = 0 AND expires < clock_timestamp() - _idle
            AND NOT EXISTS (
                SELECT 1 FROM fencepost.share WHERE share.name = lock.name AND share.expires >= clock_timestamp() - _idle
            )
            AND greatest(token, floor) < fencepost.us(clock_timestamp());
    GET DIAGNOSTICS _gone = ROW_COUNT;
    DELETE FROM fencepost.share WHERE NOT EXISTS (SELECT 1 FROM fencepost.lock WHERE lock.name = share.name);
    RETURN _gone;
END $$;

-- Who was granted the tables of an earlier revision needs what is new: the shares, and where PUBLIC may not call them,
-- the functions: those that this transaction has made.
DO $$
DECLARE
    _user oid;
    _role text;
    _function regprocedure;
BEGIN
    FOR _user IN
        SELECT DISTINCT grantee FROM pg_class, aclexplode(relacl)
        WHERE pg_class.oid = 'fencepost.waiter'::regclass AND privilege_type = 'DELETE'
    LOOP
        _role := CASE _user WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(_user)) END;
        EXECUTE 'GRANT SELECT, INSERT, UPDATE, DELETE ON fencepost.share TO ' || _role;
        FOR _function IN
            SELECT pg_proc.oid FROM pg_proc JOIN pg_class ON pronamespace = relnamespace
            WHERE pg_class.oid = 'fencepost.waiter'::regclass AND pg_proc.xmin = pg_current_xact_id()::xid
                AND NOT has_function_privilege(_user, pg_proc.oid, 'EXECUTE')
        LOOP
            EXECUTE 'GRANT EXECUTE ON FUNCTION ' || _function || ' TO ' || _role;
        END LOOP;
    END LOOP;
END $$;

-- fencepost's marks in Postgres: the table, the rule, and the triggers that hold everybody to it.
--
-- 'fencepost guard install URL' runs this, or a migration of yours does; running it again changes nothing.
-- The role of a guarded program needs:  GRANT SELECT, INSERT, UPDATE ON fencepost_mark TO app; and where it runs
-- something once, or sagas, the same on fencepost_run and fencepost_saga, with DELETE for the user that purges.
-- Where ALTER DEFAULT PRIVILEGES has revoked EXECUTE from PUBLIC, it needs EXECUTE on the functions made here, too.
-- Everything is made in the first schema of the search_path, and the functions find each other and the marks there,
-- whatever their caller's search_path says. No percent sign may stand here: drivers would take it for a parameter.

SELECT pg_advisory_xact_lock(hashtextextended('install fencepost_mark', 0));

CREATE TABLE IF NOT EXISTS fencepost_mark (
    resource text COLLATE "C" PRIMARY KEY,
    token    bigint NOT NULL CHECK (token > 0),
    seq      bigint NOT NULL CHECK (seq >= 0),
    holder   text NOT NULL,
    digest   bytea,
    before   bigint,  -- the token before the last one admitted
    writer   xid8     -- the transaction of the last write admitted: what a trigger asks for
) WITH (fillfactor = 50);

-- What has been run once, and what came of it. A row commits with the effect of its run.
CREATE TABLE IF NOT EXISTS fencepost_run (
    id     text COLLATE "C" PRIMARY KEY,
    result text,
    at     double precision NOT NULL  -- seconds since 1970
);

-- How far each saga is. A row moves with the effect of its step.
CREATE TABLE IF NOT EXISTS fencepost_saga (
    saga  text COLLATE "C" NOT NULL,
    id    text COLLATE "C" NOT NULL,
    state text NOT NULL,
    body  text NOT NULL,
    error text,
    at    double precision NOT NULL,
    PRIMARY KEY (saga, id)
);

-- The rule (rule.py), judged while the mark's row is locked, which it stays until commit. Answers the verdict, whether
-- the very same write was made before, and the mark as it was. An enter raises the mark and admits no write.
DROP FUNCTION IF EXISTS fencepost_judge(text, bigint, bigint, text, bytea, bigint, bigint);
CREATE OR REPLACE FUNCTION fencepost_judge(
    _resource text, _token bigint, _seq bigint, _holder text, _digest bytea, _max_jump bigint, _max_first bigint,
    _enters boolean DEFAULT NULL,  -- programs that do not say it enter with a seq of 0
    OUT verdict text, OUT done boolean, OUT mark_token bigint, OUT mark_seq bigint, OUT mark_holder text
) LANGUAGE plpgsql AS $$
DECLARE
    _mark fencepost_mark;
    _writer xid8;
BEGIN
    done := false;
    IF NOT coalesce(_enters, _seq = 0) THEN
        _writer := pg_current_xact_id();
    END IF;
    LOOP
        SELECT * INTO _mark FROM fencepost_mark WHERE resource = _resource FOR UPDATE;
        EXIT WHEN FOUND;
        IF _token > _max_first THEN
            verdict := 'leap';
            RETURN;
        END IF;
        INSERT INTO fencepost_mark
            VALUES (_resource, _token, _seq, _holder, _digest, NULL, _writer)
            ON CONFLICT DO NOTHING;
        IF FOUND THEN
            verdict := 'admit';
            RETURN;
        END IF;
    END LOOP;
    mark_token := _mark.token;
    mark_seq := _mark.seq;
    mark_holder := _mark.holder;
    IF _token > _mark.token THEN
        verdict := CASE WHEN _token - _mark.token > _max_jump THEN 'leap' ELSE 'admit' END;
    ELSIF _token < _mark.token THEN
        verdict := 'stale';
    ELSIF _holder <> _mark.holder THEN
        verdict := CASE WHEN _holder = '' THEN 'stale' ELSE 'clash' END;
    ELSIF _seq = 0 OR _seq > _mark.seq THEN
        verdict := 'admit';
    ELSIF _seq < _mark.seq THEN
        verdict := 'late';
    ELSE
        verdict := CASE WHEN _holder = '' THEN 'stale' ELSE 'replay' END;
        done := verdict = 'replay' AND coalesce(_digest = _mark.digest, false);
    END IF;
    IF verdict = 'admit' AND (_token > _mark.token OR _seq > _mark.seq) THEN
        UPDATE fencepost_mark
            SET token = _token, seq = _seq, holder = _holder, digest = _digest, before = _mark.token,
                -- A transaction that was admitted stays so when its own lease enters again.
                writer = CASE
                    WHEN _writer IS NULL AND _token = _mark.token AND _mark.writer = pg_current_xact_id()
                    THEN _mark.writer ELSE _writer END
            WHERE resource = _resource;
    END IF;
END $$;

-- The largest token that an issuer which starts at the time in microseconds, or below, has come to by now.
CREATE OR REPLACE FUNCTION fencepost_highest() RETURNS bigint LANGUAGE sql AS $$
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000000)::bigint + 86400000000
$$;

-- For psql and other languages: returns if the write that follows in this transaction may be made, raises if not.
CREATE OR REPLACE FUNCTION fencepost_admit(_resource text, _token bigint, _seq bigint DEFAULT 1, _holder text DEFAULT '')
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    _found record;
    _day CONSTANT bigint := 86400000000;
    _highest bigint := fencepost_highest();
BEGIN
    -- A token that no issuer can have come to would lock everybody out.
    SELECT * INTO _found FROM fencepost_judge(
        _resource, _token, _seq, _holder, NULL,
        CASE WHEN _token > _highest THEN _day END, CASE WHEN _token > _highest THEN _highest END
    );
    IF _found.verdict <> 'admit' THEN
        RAISE EXCEPTION USING ERRCODE = 'FP409',
            MESSAGE = _found.verdict || ' fencing token for ' || quote_literal(_resource) || ': got ' || _token
                || ', seen ' || coalesce(_found.mark_token::text, 'none'),
            HINT = CASE WHEN _found.verdict = 'leap'
                THEN 'No issuer can have come to it by now: look where this token comes from.'
                ELSE 'This holder was replaced: roll back, and acquire the lock again.' END;
    END IF;
END $$;

-- 'account/{id}' and a row: 'account/42'.
CREATE OR REPLACE FUNCTION fencepost_resource(_template text, _row jsonb) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    _made text := '';
    _open integer;
    _close integer;
    _column text;
BEGIN
    LOOP
        _open := position('{' IN _template);
        _close := position('}' IN _template);
        EXIT WHEN _open = 0 OR _close < _open;
        _column := substr(_template, _open + 1, _close - _open - 1);
        IF _row ->> _column IS NULL THEN
            -- A resource without a name cannot be guarded.
            RAISE EXCEPTION USING ERRCODE = 'FP428',
                MESSAGE = 'no fencing token can be asked for: the row has nothing in ' || quote_literal(_column),
                HINT = 'Install the trigger with a column that is there and is never null.';
        END IF;
        _made := _made || left(_template, _open - 1) || (_row ->> _column);
        _template := substr(_template, _close + 1);
    END LOOP;
    RETURN _made || _template;
END $$;

-- Refuses to change a row whose resource was not admitted in this very transaction. Argument: the template.
CREATE OR REPLACE FUNCTION fencepost_fenced() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    _resource text;
BEGIN
    FOREACH _resource IN ARRAY ARRAY[
        fencepost_resource(TG_ARGV[0], to_jsonb(OLD)),
        CASE WHEN TG_OP = 'UPDATE' THEN fencepost_resource(TG_ARGV[0], to_jsonb(NEW)) END
    ] LOOP
        IF _resource IS NOT NULL AND NOT EXISTS (
            SELECT 1 FROM fencepost_mark WHERE resource = _resource AND writer = pg_current_xact_id()
        ) THEN
            RAISE EXCEPTION USING ERRCODE = 'FP428',
                MESSAGE = TG_OP || ' of ' || TG_TABLE_NAME || ' without a fencing token for ' || quote_literal(_resource),
                HINT = 'Admit it first in the same transaction: SELECT fencepost_admit(resource, token).';
        END IF;
    END LOOP;
    IF TG_OP = 'DELETE' THEN
        RETURN OLD;
    END IF;
    RETURN NEW;
END $$;

-- Refuses an update that does not raise the row's epoch, or raises it to what no issuer can have come to, and to delete
-- a row that has one. Arguments: the column; 'ceiling off' if an epoch may be as high as it likes.
CREATE OR REPLACE FUNCTION fencepost_epoch() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    _before bigint := coalesce((to_jsonb(OLD) ->> TG_ARGV[0])::bigint, 0);
    _after bigint;
    _day CONSTANT bigint := 86400000000;
BEGIN
    IF TG_OP = 'DELETE' THEN
        IF _before > 0 THEN
            RAISE EXCEPTION USING ERRCODE = 'FP428',
                MESSAGE = 'DELETE of ' || TG_TABLE_NAME || ' would forget that token ' || _before || ' was here',
                HINT = 'Keep the row, and mark it as deleted in a column of its own, under a newer token.';
        END IF;
        RETURN OLD;
    END IF;
    _after := coalesce((to_jsonb(NEW) ->> TG_ARGV[0])::bigint, 0);
    IF _after < _before THEN
        RAISE EXCEPTION USING ERRCODE = 'FP409',
            MESSAGE = 'stale fencing token for ' || TG_TABLE_NAME || ': got ' || _after || ', seen ' || _before,
            HINT = 'This holder was replaced: roll back, and acquire the lock again.';
    ELSIF _after = _before THEN
        RAISE EXCEPTION USING ERRCODE = 'FP428',
            MESSAGE = 'UPDATE of ' || TG_TABLE_NAME || ' without a new fencing token in ' || TG_ARGV[0],
            HINT = 'Set ' || TG_ARGV[0] || ' to the token of a lease newer than ' || _before || '.';
    ELSIF TG_ARGV[1] IS DISTINCT FROM 'ceiling off' AND _after - _before > _day AND _after > fencepost_highest() THEN
        RAISE EXCEPTION USING ERRCODE = 'FP409',
            MESSAGE = 'leap fencing token for ' || TG_TABLE_NAME || ': got ' || _after || ', seen ' || _before,
            HINT = 'No issuer can have come to it by now: look where this token comes from.';
    END IF;
    RETURN NEW;
END $$;

-- Refuses to empty a table past the triggers of its rows.
CREATE OR REPLACE FUNCTION fencepost_truncate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'FP428',
        MESSAGE = 'TRUNCATE of ' || TG_TABLE_NAME || ' without a fencing token for its rows',
        HINT = 'Delete them under their tokens, or drop the triggers fencepost_* of the table first.';
END $$;

-- Else a temporary table or a schema of the caller's own could stand in for the marks.
DO $$
DECLARE
    _function regprocedure;
BEGIN
    FOR _function IN SELECT oid FROM pg_proc
        WHERE pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema()) AND proname IN (
            'fencepost_judge', 'fencepost_highest', 'fencepost_admit', 'fencepost_resource', 'fencepost_fenced',
            'fencepost_epoch', 'fencepost_truncate'
        )
    LOOP
        EXECUTE 'ALTER FUNCTION ' || _function || ' SET search_path = pg_catalog, ' || quote_ident(current_schema())
            || ', pg_temp';
    END LOOP;
END $$;

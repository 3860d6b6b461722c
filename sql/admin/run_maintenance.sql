-- The worker's steps. Each is short and its own transaction. What a step could not latch waits for a later one. A step
-- answers how many rows it worked on; 0 means that there is no work now.
-- On Citus every node's worker searches for work in its own shards. The work itself goes through the distributed
-- table, which knows when a shard has moved.

--- Citus: partitions with matching rows in this node's shards, the least first, up to a limit
-- The condition comes from our code, never from a client.
CREATE FUNCTION mantle.local_partitions(p_table text, p_column text, p_where text, p_limit int) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_all text := mantle.over_local_shards(
        p_table, format('SELECT DISTINCT %I AS pid FROM %%shard%% WHERE %s ORDER BY 1 LIMIT %s',
                        p_column, p_where, p_limit));
    v_pids bigint[];
BEGIN
    IF v_all IS NOT NULL THEN
        EXECUTE format('SELECT array_agg(u.pid ORDER BY u.pid)
                          FROM (SELECT DISTINCT a.pid FROM %s AS a ORDER BY 1 LIMIT %s) AS u', v_all, p_limit) INTO v_pids;
    END IF;
    RETURN coalesce(v_pids, '{}');
END $$;

--- Folds the directories that it can latch, in order of pids, up to a batch; answers where it stopped if there was more
-- The session remembers busy directories, which had many delta records: they are also checked between rounds, as long
-- as they have some then. (A round does not end that, because the one right after it finds few.)
CREATE FUNCTION mantle.maintain_directories(p_pids bigint[], p_batch int, p_busy_min int, p_is_round boolean)
RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_folded bigint := 0;
    v_stopped_at bigint;
    v_latched bigint[] := '{}';
    v_pid bigint;
    v_last bigint;
    v_one bigint;
    v_busy bigint[] := coalesce(nullif(current_setting('mantle.compact_busy', true), '')::bigint[], '{}');
    v_found bigint[] := '{}';
BEGIN
    -- If it is latched exclusively (an import, an rmdir), it waits for a later step. A shard that has just moved
    -- belongs to another node.
    FOREACH v_pid IN ARRAY ARRAY(SELECT p FROM unnest(p_pids) AS p ORDER BY p) LOOP
        IF mantle.is_local(ARRAY[v_pid]) AND mantle.try_latch_shared(v_pid) THEN
            v_latched := v_latched || v_pid;
        END IF;
    END LOOP;
    IF NOT mantle.is_distributed() THEN
        -- any order
        SELECT coalesce(sum(c.folded), 0), coalesce(array_agg(c.pid) FILTER (WHERE c.folded >= p_busy_min), '{}'),
               max(c.pid)
          INTO v_folded, v_found, v_last FROM mantle.compact_directories(v_latched, p_batch) AS c;
    ELSE
        FOREACH v_last IN ARRAY v_latched LOOP
            v_one := mantle.compact_directory(v_last, p_batch);
            v_folded := v_folded + v_one;
            v_found := CASE WHEN v_one >= p_busy_min THEN v_found || v_last ELSE v_found END;
            EXIT WHEN v_folded >= p_batch;
        END LOOP;
    END IF;
    IF v_folded >= p_batch THEN
        v_stopped_at := v_last;
    END IF;
    -- Directories that this batch did not reach come first.
    v_busy := ARRAY(SELECT b.pid FROM unnest(v_busy) WITH ORDINALITY AS b (pid, n)
                     WHERE b.pid <> ALL (v_found) AND (p_is_round OR b.pid <> ALL (p_pids) OR b.pid > v_stopped_at)
                     ORDER BY b.pid > v_stopped_at DESC NULLS LAST, b.n);
    PERFORM set_config('mantle.compact_busy', (v_busy || v_found)::text, false);
    RETURN v_stopped_at;
END $$;

--- The worker's compaction step
-- Some directories per call, in order of pids, from where this session stopped. 0 ends a round. (One transaction per
-- directory, without a pause, took more processor time than the changes themselves.)
CREATE FUNCTION mantle.maintain_compaction(p_batch int) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_from bigint := coalesce(nullif(current_setting('mantle.compact_from', true), '')::bigint, 0);
    v_pids bigint[];
    v_stopped_at bigint;
BEGIN
    IF mantle.is_distributed() THEN
        v_pids := mantle.local_partitions('meta', 'pid', format('ts > 0 AND pid >= %s', v_from), 64);
    ELSE
        -- Skips from one directory to the next, over their delta records.
        WITH RECURSIVE next (pid) AS (
            (SELECT m.pid FROM mantle.meta m WHERE m.ts > 0 AND m.pid >= v_from ORDER BY m.pid LIMIT 1)
            UNION ALL
            SELECT (SELECT m.pid FROM mantle.meta m WHERE m.ts > 0 AND m.pid > n.pid ORDER BY m.pid LIMIT 1)
              FROM next n WHERE n.pid IS NOT NULL)
        SELECT array_agg(n.pid ORDER BY n.pid) INTO v_pids
          FROM (SELECT pid FROM next WHERE pid IS NOT NULL LIMIT 64) AS n;
    END IF;
    IF coalesce(cardinality(v_pids), 0) = 0 THEN
        PERFORM set_config('mantle.compact_from', '0', false);
        RETURN 0;
    END IF;
    v_stopped_at := mantle.maintain_directories(v_pids, p_batch, 50, true);
    PERFORM set_config('mantle.compact_from', coalesce(v_stopped_at, v_pids[cardinality(v_pids)] + 1)::text, false);
    RETURN cardinality(v_pids);
END $$;

--- The worker's compaction of busy directories between two rounds; answers how many of them still are
CREATE FUNCTION mantle.maintain_busy_directories(p_batch int) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE v_busy bigint[] := nullif(current_setting('mantle.compact_busy', true), '')::bigint[];
BEGIN
    IF cardinality(v_busy) > 0 THEN
        PERFORM mantle.maintain_directories(v_busy[:64], p_batch, 5, false);
    END IF;
    RETURN coalesce(cardinality(nullif(current_setting('mantle.compact_busy', true), '')::bigint[]), 0);
END $$;

--- The worker's pruning step
-- One directory per transaction, because its latches end with it. Deletes all due rows of the directory before
-- checking it, so every deletion that they announced is visible. On Citus a directory that goes keeps one row until a
-- later step finds it gone on every node: a listing must not miss the row on one node and see the directory on another.
CREATE FUNCTION mantle.maintain_pruning() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_due timestamptz := now() - current_setting('mantle.prune_grace_ms')::int * interval '1 millisecond';
    v_pid bigint;
    v_head mantle.prune_queue;
    v_is_there boolean;
BEGIN
    IF mantle.is_distributed() THEN
        v_pid := (mantle.local_partitions('prune_queue', 'pid', format('queued <= %L', v_due), 1))[1];
        -- To lock rows, even none, Citus begins a transaction of its own.
        IF v_pid IS NULL THEN
            RETURN 0;
        END IF;
        SELECT * INTO v_head FROM mantle.prune_queue q WHERE q.pid = v_pid AND q.queued <= v_due
         ORDER BY q.queued LIMIT 1 FOR UPDATE SKIP LOCKED;
    ELSE
        SELECT * INTO v_head FROM mantle.prune_queue q WHERE q.queued <= v_due
         ORDER BY q.queued LIMIT 1 FOR UPDATE SKIP LOCKED;
    END IF;
    IF v_head.seq IS NULL THEN
        RETURN 0;
    END IF;
    DELETE FROM mantle.prune_queue q WHERE q.pid = v_head.pid AND q.id = v_head.id AND q.queued <= v_due;
    v_is_there := mantle.is_distributed() AND EXISTS (
        SELECT m.pid FROM mantle.meta m WHERE m.id = v_head.id AND m.explicit IS FALSE AND m.pid > 1);
    IF NOT mantle.prune(v_head.id) OR v_is_there AND mantle.is_empty(v_head.id) THEN
        PERFORM mantle.queue_pruning(v_head.pid, v_head.id);
    END IF;
    RETURN 1;
END $$;

--- One step of the background worker: compact, prune, empty_trash, purge_operations, purge_requests, purge_tombstones,
--- purge_attempts or purge_freed
CREATE FUNCTION mantle.run_maintenance(p_step text) RETURNS bigint
LANGUAGE plpgsql VOLATILE {as_owner} SET lock_timeout = '1s' AS $$
DECLARE
    v_batch int := current_setting('mantle.compaction_batch')::int;
    v_requests timestamptz := now() - current_setting('mantle.request_retention_s')::int * interval '1 second';
    v_tombstones timestamptz := now() - current_setting('mantle.tombstone_retention_s')::int * interval '1 second';
BEGIN
    RETURN CASE p_step
        WHEN 'compact' THEN mantle.maintain_compaction(v_batch)
        WHEN 'compact_busy' THEN mantle.maintain_busy_directories(v_batch)
        WHEN 'prune' THEN mantle.maintain_pruning()
        WHEN 'empty_trash' THEN mantle.maintain_trash(v_batch)
        WHEN 'purge_operations' THEN
            mantle.purge('operations', 'pid', format('state = ''done'' AND finished < %L', v_requests), v_batch)
        WHEN 'purge_requests' THEN mantle.maintain_requests(v_requests, v_batch)
        WHEN 'purge_tombstones' THEN
            mantle.purge('meta', 'pid', format('removed AND created < %L', v_tombstones), v_batch)
        WHEN 'purge_attempts' THEN mantle.purge('rename_attempts', 'ns', format('created < %L', v_tombstones), v_batch)
        WHEN 'purge_freed' THEN mantle.maintain_freed(v_batch)
    END;
END $$;

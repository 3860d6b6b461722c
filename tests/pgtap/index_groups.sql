-- Index groups, their namespaces, and moves between them: what gateways and leaders read at each step.
\ir setup.psql
SELECT plan(39);

SELECT matches(mantle.create_index_group(7), '^mantle_index_7_[0-9a-f]{8}$', 'a group has a slot of its own');
SELECT is(mantle.create_index_group(7), mantle.new_slot_name(7), 'done already is done');
SELECT ok(octet_length(mantle.new_slot_name(2147483647)) <= 63, 'the longest name fits');
-- As a group of a copied database, or one made by an older release.
UPDATE mantle.index_groups SET slot_name = 'mantle_index_7' WHERE index_group = 7;
SELECT is(mantle.create_index_group(7), 'mantle_index_7', 'an older name stays');
SELECT is(mantle.rename_index_slot(7), mantle.new_slot_name(7), 'until somebody changes it');
SELECT throws_ok('SELECT mantle.create_index_group(0)', '22023', NULL, 'groups count from one');
SELECT throws_ok('SELECT mantle.drop_index_group(1)', '0A000', NULL, 'group 1 stays');
SELECT lives_ok('SELECT mantle.drop_index_group(99)', 'gone already is gone');

CREATE FUNCTION pg_temp.made(p_name text, p_id bigint, p_group int) RETURNS text LANGUAGE sql AS $$
    SELECT coalesce(c.code, 'made') FROM mantle.create_namespace(0, p_name, p_id, 0, 0, 493, gen_random_uuid(), 1,
        p_group) AS c
$$;
SELECT first_id AS id FROM mantle.allocate_ids('groups', 10) \gset
SELECT is(pg_temp.made('grouped', :id, 7), 'made', 'a namespace chooses its group');
SELECT is(pg_temp.made('ungrouped', :id + 1, NULL), 'made', 'or none');
SELECT is(pg_temp.made('nowhere', :id + 2, 8), 'MT006', 'but not one that is not there');
SELECT is((SELECT index_group FROM mantle.assignment('grouped')), 7, 'gateways are told the group');
SELECT is((SELECT index_group FROM mantle.assignment('ungrouped')), 1, 'group 1 by default');
SELECT is((SELECT index_group FROM mantle.assignment('nowhere')), NULL, 'no namespace, no group');
SELECT results_eq('SELECT is_served, move_phase FROM mantle.index_namespaces(7)', $$VALUES (true, NULL::text)$$,
    'the group has it alone');
SELECT results_eq(format('SELECT index_group, has_moved FROM mantle.assignments(ARRAY[%s::bigint, 5])', :id),
    'VALUES (7, false)', 'a leader asks by id');
SELECT throws_ok('SELECT mantle.drop_index_group(7)', '55006', NULL, 'a group in use stays');

-- A move, step by step.
CREATE TEMPORARY TABLE seen AS SELECT mantle.all_assignment_changes() AS changes;
CREATE FUNCTION pg_temp.has_changed() RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE v_changed boolean := mantle.all_assignment_changes() > (SELECT s.changes FROM seen s);
BEGIN
    UPDATE seen SET changes = mantle.all_assignment_changes();
    RETURN v_changed;
END $$;
SELECT throws_ok($$SELECT mantle.move_namespace('nowhere', 1)$$, '42704', NULL, 'no namespace to move');
SELECT throws_ok($$SELECT mantle.move_namespace('grouped', 99)$$, '42704', NULL, 'no group to move to');
SELECT is(mantle.move_namespace('grouped', 7), 'done', 'it is there already');
SELECT is(mantle.move_namespace('grouped', 1), 'copy', 'it begins to move');
SELECT is(mantle.move_namespace('grouped', 1), 'copy', 'once');
SELECT ok(pg_temp.has_changed(), 'and that is seen');
SELECT results_eq($$SELECT index_group, also FROM mantle.assignment('grouped')$$, 'VALUES (7, NULL::int)',
    'copy: nothing changes for gateways');
SELECT is((SELECT is_served FROM mantle.index_namespaces(1) WHERE move_phase = 'copy'), false,
    'the new group has to have it');
SELECT is(mantle.advance_move(:id, 1, 'both'), false, 'no step is left out');
SELECT is(mantle.advance_move(:id, 7, 'copy'), false, 'only the new group takes them');
SELECT ok(mantle.advance_move(:id, 1, 'copy') AND pg_temp.has_changed(), 'copied');
SELECT results_eq($$SELECT index_group, also FROM mantle.assignment('grouped')$$, 'VALUES (7, 1)',
    'both: both groups acknowledge');
SELECT is(mantle.abort_move('grouped'), 'aborted', 'it can be taken back');
SELECT results_eq($$SELECT index_group, also FROM mantle.assignment('grouped')$$, 'VALUES (7, NULL::int)', 'as before');
SELECT ok(mantle.move_namespace('grouped', 1) = 'copy' AND mantle.advance_move(:id, 1, 'copy')
    AND mantle.advance_move(:id, 1, 'both'), 'switched');
SELECT results_eq($$SELECT index_group, also FROM mantle.assignment('grouped')$$, 'VALUES (1, 7)',
    'the new group answers, both acknowledge');
SELECT is(mantle.abort_move('grouped'), 'switched', 'too late to take it back');
SELECT is((mantle.read_place_delegated(0, 'grouped/', :id, 7)).epoch, NULL,
    'a rename that the old group prepared finds no epoch');
SELECT ok(mantle.advance_move(:id, 1, 'switched') AND pg_temp.has_changed(), 'done');
SELECT results_eq($$SELECT index_group, also FROM mantle.assignment('grouped')$$, 'VALUES (1, NULL::int)',
    'it has moved');

-- Nothing is left of the group.
SELECT is((SELECT string_agg(coalesce(d.code, 'gone'), ' ') FROM unnest(ARRAY['grouped', 'ungrouped']) AS n(name)
            CROSS JOIN LATERAL mantle.delete_namespace(0, n.name, gen_random_uuid(), 1) AS d), 'gone gone',
                'both namespaces go');
SELECT lives_ok('SELECT mantle.drop_index_group(7)', 'and then the group');
SELECT * FROM finish();

--- gateway: The identity of this metadata database. It never changes
CREATE FUNCTION mantle.cluster_id() RETURNS uuid LANGUAGE sql STABLE {as_owner} AS $$
    SELECT c.id FROM mantle.cluster c ORDER BY c.made, c.id LIMIT 1
$$;

-- The first file. Names are compared and measured as the bytes of UTF-8, here and by every service. A database with
-- another encoding would store names that `mantle.check` refuses for good.
DO $$
BEGIN
    IF pg_catalog.current_setting('server_encoding') <> 'UTF8' THEN
        RAISE EXCEPTION USING ERRCODE = 'feature_not_supported',
            MESSAGE = pg_catalog.format('mantle needs a database with the encoding UTF8, and this one has %s',
                                        pg_catalog.current_setting('server_encoding')),
            HINT = 'CREATE DATABASE with ENCODING ''UTF8'' and TEMPLATE template0.';
    END IF;
END $$;

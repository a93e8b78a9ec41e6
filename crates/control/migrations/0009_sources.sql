-- Verified sources: whose usage a source may emit, and signing keys that are useless to whoever reads the database.

-- Whose usage a source emits: its home tenant's without anybody being asked. All others are a question to the policy point
-- (emit_on_behalf), which is told whether the source was registered for any tenant; so is every tenant of a source without a row.
CREATE TABLE sources (
    source      text COLLATE "C" PRIMARY KEY,
    home_tenant uuid CHECK (home_tenant <> '00000000-0000-0000-0000-000000000000'),
    any_tenant  boolean NOT NULL DEFAULT false,
    updated_at  timestamptz NOT NULL DEFAULT now(),
    CHECK (NOT any_tenant OR home_tenant IS NULL)
);

-- Sources that are there already are registered for any tenant: they emitted for whomever they liked.
INSERT INTO sources (source, any_tenant) SELECT DISTINCT source, true FROM source_keys;

-- `key` held keys in the clear. From here on a key comes sealed (version 1, nonce, AES-256-GCM) under the master key of that id, which the
-- database never sees. `usagectl control migrate` seals what is there; nobody reads `key` otherwise, and nobody can write it any more.
ALTER TABLE source_keys ALTER COLUMN key DROP NOT NULL;
ALTER TABLE source_keys ADD COLUMN sealed bytea, ADD COLUMN master_key_id text COLLATE "C";
ALTER TABLE source_keys ADD CONSTRAINT source_keys_sealed
    CHECK (key IS NULL AND sealed IS NOT NULL AND master_key_id IS NOT NULL) NOT VALID;

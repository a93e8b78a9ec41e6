#!/bin/sh
# Prepares what the services find when they start. Everything that is there already stays as it is.
set -eu
umask 077
mkdir -p /state/keys /state/config

secret() {
    if [ ! -s "$1" ]; then
        od -An -N32 -tx1 /dev/urandom | tr -d ' \n' > "$1.tmp"
        mv "$1.tmp" "$1"
    fi
    cat "$1"
}

[ -e /state/keys/jwks.json ] || usagectl keys generate --dir /state/keys
secret /state/keys/master.key > /dev/null
usagectl topics create
usagectl control migrate
usagectl storage migrate
usagectl outbox migrate
demo_key=$(secret /state/keys/demo.key)
secret /state/keys/demo.key | usagectl source add demo --key-id demo-1 --key-hex - --any-tenant
usagectl types add llm.requests --kind counter --unit requests
usagectl types add llm.input_tokens --kind counter --unit tokens
usagectl types add llm.output_tokens --kind counter --unit tokens
usagectl types add gpu.utilization --kind gauge --unit percent
usagectl types add vm.memory --kind gauge --unit bytes

cat > /state/config/query-api.toml <<TOML
[api]
cursor_key = "$(secret /state/keys/cursor.key)"

[auth]
key_file = "/state/keys/jwks.json"
TOML
cat > /state/config/relay.toml <<TOML
[relay]
default_source = "demo"

[[relay.sources]]
name = "demo"
key_id = "demo-1"
key = "$demo_key"
TOML

#!/bin/sh
# Draws what is missing into secrets/, readable by its owner alone, and a self-signed certificate where there is none.
set -eu
cd "$(dirname "$0")"
umask 077
mkdir -p secrets certificates
for name in database_password store_password admin_password session_key; do
    [ -s "secrets/$name" ] || openssl rand -hex 24 > "secrets/$name"
done
if [ ! -s certificates/server.crt ]; then
    name=${SERVER_NAME:-localhost}
    openssl req -x509 -newkey rsa:2048 -nodes -days 365 -subj "/CN=$name" -addext "subjectAltName=DNS:$name" \
        -keyout certificates/server.key -out certificates/server.crt 2> /dev/null
fi
echo "secrets/ and certificates/ are complete; user admin, password in secrets/admin_password"

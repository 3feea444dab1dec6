#!/bin/sh
# Draws what is missing into secrets/, readable by its owner alone, and a self-signed certificate where there is none.
#   SERVER_NAME=mlflow.example.org ./secrets.sh     or     ./secrets.sh mlflow.example.org
# The name is kept in .env, where docker compose finds it too: certificate and server have the same.
set -eu
cd "$(dirname "$0")"
umask 077

kept=$([ ! -f .env ] || sed -n 's/^SERVER_NAME=//p' .env)
name=${1:-${SERVER_NAME:-$kept}}
case $name in
    "") echo "secrets.sh: by which name is the server called? SERVER_NAME=mlflow.example.org ./secrets.sh" >&2; exit 2 ;;
    *[!A-Za-z0-9.-]* | .* | -* | *. | *-) echo "secrets.sh: SERVER_NAME is no host name; write mlflow.example.org" >&2; exit 2 ;;
esac
if [ -s certificates/server.crt ] && ! openssl x509 -in certificates/server.crt -noout -checkhost "$name" | grep -q "does match"; then
    echo "secrets.sh: certificates/server.crt is not for $name; put the right one there, or remove it and call this again" >&2
    exit 2
fi

mkdir -p secrets certificates
for secret in database_password admin_password session_key; do
    [ -s "secrets/$secret" ] || openssl rand -hex 24 > "secrets/$secret"
done
# The log-in of compose.login.yaml: oauth2-proxy's cookies, and the proof that a header is the proxy's.
if [ -s secrets/client_secret ]; then
    [ -s secrets/cookie_secret ] || printf %s "$(openssl rand -hex 16)" > secrets/cookie_secret
    [ -s secrets/proxy_secret ] || openssl rand -hex 24 > secrets/proxy_secret
    echo "proxy_set_header X-Evenhand-Proxy-Secret $(cat secrets/proxy_secret);" > secrets/proxy_secret.conf
fi
if [ ! -s certificates/server.crt ]; then
    openssl req -x509 -newkey rsa:2048 -nodes -days 365 -subj "/CN=$name" -addext "subjectAltName=DNS:$name" \
        -keyout certificates/server.key -out certificates/server.crt 2> /dev/null
fi
{ [ ! -f .env ] || grep -v '^SERVER_NAME=' .env || true; echo "SERVER_NAME=$name"; } > .env.new
mv .env.new .env
echo "secrets/, certificates/ and .env are complete for $name; user admin, password in secrets/admin_password"

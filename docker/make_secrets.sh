#!/bin/sh
# Makes the secrets that docker-compose.yml reads. A file that exists is left unchanged.
#   sh docker/make_secrets.sh [FOLDER]
# Or writes FOLDER/host, the secrets of a worker on another host, which reaches this one by NAME. It
# needs FOLDER/tls_ca, the certificates that signed this host's.
#   sh docker/make_secrets.sh host NAME [FOLDER]
# Or replaces a secret, and the URL that contains it. docs/operations.md ("Rotate secrets") says what
# to run before and after.
#   sh docker/make_secrets.sh rotate admin_key|postgres_password|redis_password [FOLDER]
set -eu

fail() {
    echo "make_secrets: $2" >&2
    exit "$1"
}

random() { od -An -N32 -tx1 /dev/urandom | tr -d ' \n'; }

# The containers' user must be able to read a secret: each file is mounted separately.
write() {
    rm -f "$folder/.$1.new"
    printf '%s' "$2" > "$folder/.$1.new"
    chmod 444 "$folder/.$1.new"
}

replace() { mv -f "$folder/.$1.new" "$folder/$1"; }

keep() {
    if [ ! -e "$folder/$1" ]; then
        write "$1" "$2"
        replace "$1"
    fi
}

make_all() {
    # On this host, only the owner can enter the folder.
    mkdir -p "$folder"
    chmod 700 "$folder"
    keep postgres_password "$(random)"
    keep redis_password "$(random)"
    keep admin_key "tuner_$(random)"
    keep database_url "postgresql://tuner:$(cat "$folder/postgres_password")@postgres/tuner"
    keep broker_url "redis://:$(cat "$folder/redis_password")@redis:6379/0"
    echo "made in $folder/: the key for the API is in $folder/admin_key"
}

# The password and the URL that contains it.
rotate_password() {
    old=$(cat "$folder/$1")
    url=$(cat "$folder/$2")
    case $url in
        *":$old@"*) ;;
        *) fail 1 "$folder/$2 does not contain the password in $folder/$1: change both by hand" ;;
    esac
    new=$(random)
    write "$1" "$new"
    write "$2" "${url%%":$old@"*}:$new@${url#*":$old@"}"
    replace "$1"
    replace "$2"
    echo "replaced: $folder/$1, and the password in $folder/$2"
}

rotate() {
    [ -e "$folder/admin_key" ] || fail 2 "$folder/ has no secrets: make them first"
    case $1 in
        postgres_password) rotate_password postgres_password database_url ;;
        redis_password) rotate_password redis_password broker_url ;;
        admin_key)
            write admin_key "tuner_$(random)"
            replace admin_key
            echo "replaced: $folder/admin_key"
            ;;
        *) fail 2 "no secret is called '$1': use admin_key, postgres_password or redis_password" ;;
    esac
    echo "the section \"Rotate secrets\" of docs/operations.md says what to run now"
}

make_host() {
    [ -n "$1" ] || fail 2 "name this host as others reach it: sh docker/make_secrets.sh host NAME"
    [ -e "$folder/admin_key" ] || fail 2 "$folder/ has no secrets: make them first"
    [ -e "$folder/tls_ca" ] || fail 2 "$folder/tls_ca is missing: the certificates of the authority"
    postgres=$(cat "$folder/postgres_password")
    redis=$(cat "$folder/redis_password")
    ca="$folder/tls_ca"
    folder="$folder/host"
    mkdir -p "$folder"
    chmod 700 "$folder"
    tls="sslmode=verify-full&sslrootcert=/run/secrets/tls_ca&sslnegotiation=direct"
    write database_url "postgresql://tuner:$postgres@$1:5432/tuner?$tls"
    write broker_url "rediss://:$redis@$1:6379/0"
    write tls_ca "$(cat "$ca")"
    for name in database_url broker_url tls_ca; do replace "$name"; done
    echo "made in $folder/: copy it to the other host, as secrets/ beside docker-compose.worker.yml"
}

if [ "${1:-}" = host ]; then
    folder=${3:-secrets}
    make_host "${2:-}"
elif [ "${1:-}" = rotate ]; then
    folder=${3:-secrets}
    rotate "${2:-}"
else
    folder=${1:-secrets}
    make_all
fi

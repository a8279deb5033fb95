#!/bin/sh
# Makes the secrets that docker-compose.yml reads. A file that exists is left unchanged.
#   sh docker/make_secrets.sh [FOLDER]
set -eu
folder=${1:-secrets}
# On this host, only the owner can enter the folder. In a container, each file is mounted separately,
# and the service's user must be able to read it.
mkdir -p "$folder"
chmod 700 "$folder"

random() { od -An -N32 -tx1 /dev/urandom | tr -d ' \n'; }

keep() {
    if [ ! -e "$folder/$1" ]; then
        printf '%s' "$2" > "$folder/$1"
        chmod 444 "$folder/$1"
    fi
}

keep postgres_password "$(random)"
keep redis_password "$(random)"
keep admin_key "tuner_$(random)"
keep database_url "postgresql://tuner:$(cat "$folder/postgres_password")@postgres/tuner"
keep broker_url "redis://:$(cat "$folder/redis_password")@redis:6379/0"
echo "made in $folder/: the key for the API is in $folder/admin_key"

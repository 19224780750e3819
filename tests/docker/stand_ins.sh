#!/bin/sh
# stand_ins.sh FOLDER: makes the content of the base images from Debian packages, if no registry of images can be reached.
# FOLDER/root becomes a system with Python, PostgreSQL, Redis, RabbitMQ and nginx, and the entry points of their official
# images.
set -eu
root=$1/root
rm -rf "$root"
debootstrap --variant=minbase --include=ca-certificates trixie "$root"

# Servers must not start while they are installed.
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
chmod +x "$root/usr/sbin/policy-rc.d"
chroot "$root" apt-get update
chroot "$root" apt-get install -y --no-install-recommends \
    python3-venv postgresql redis-server rabbitmq-server nginx-light curl procps
# A new pip, as in the official image, because the pip of Debian refuses to install.
chroot "$root" python3 -m venv /opt/python
# In the build pip trusts the same certificates as here.
cat /etc/ssl/certs/ca-certificates.crt >"$root/etc/ssl/certs/ca-certificates.crt"
rm -rf "$root/var/cache/apt/archives" "$root/var/lib/apt/lists" "$root/var/lib/postgresql"

cat >"$root/usr/local/bin/start-redis" <<'SH'
#!/bin/sh
# The official image is open to its network.
exec "$@" --protected-mode no
SH

cat >"$root/usr/local/bin/start-postgres" <<'SH'
#!/bin/sh
# Makes the cluster at the first start, and becomes the server.
set -e
data=/var/lib/postgresql/data
if [ "$(id -u)" = 0 ]; then
    install -d -o postgres -g postgres -m 700 $data /var/run/postgresql
    exec setpriv --reuid=postgres --regid=postgres --init-groups "$0" "$@"
fi
if [ ! -s $data/PG_VERSION ]; then
    (umask 077 && printf %s "$POSTGRES_PASSWORD" >/tmp/password)
    initdb --pgdata=$data --username="$POSTGRES_USER" --pwfile=/tmp/password --auth-local=trust --auth-host=scram-sha-256
    rm /tmp/password
    echo "host all all all scram-sha-256" >>$data/pg_hba.conf
    echo "CREATE DATABASE \"$POSTGRES_DB\"" | postgres --single -D $data postgres
fi
shift $(($# > 0))  # the word `postgres`
exec postgres -D $data -c listen_addresses='*' "$@"
SH

cat >"$root/usr/local/bin/start-rabbitmq" <<'SH'
#!/bin/sh
# Debian's own script writes the log to files. The server itself reads RABBITMQ_DEFAULT_USER and RABBITMQ_DEFAULT_PASS.
set -e
chown rabbitmq:rabbitmq /var/lib/rabbitmq
cd /var/lib/rabbitmq
export RABBITMQ_LOGS=-
exec setpriv --reuid=rabbitmq --regid=rabbitmq --init-groups "$@"
SH
chmod +x "$root/usr/local/bin/start-redis" "$root/usr/local/bin/start-postgres" "$root/usr/local/bin/start-rabbitmq"

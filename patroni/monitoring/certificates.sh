#!/bin/sh
# Shows Prometheus the certificates that no process of Mantle's reports: those of etcd, Patroni, PgBouncer and HAProxy. It also
# notices a file that was replaced and that the program has not loaded.
#
#   certificates.sh LIST PAGE
#
# Run it every hour on each machine, as an account that may read the files: it writes PAGE, which node_exporter adds to its own
# (Debian's: /var/lib/prometheus/node-exporter/certificates.prom). It needs openssl.
#
# A line of LIST has a file of certificates in PEM, then the ports that show the first certificate of the file, if there are
# any: HOST:PORT, or postgres://HOST:PORT for PostgreSQL and PgBouncer, whose clients ask for TLS first. A line may be a comment.
#
#   # on a machine of etcd
#   /etc/etcd/ca.crt
#   /etc/etcd/etcd.crt etcd1:2379 etcd1:2380
#   # on a machine of PostgreSQL
#   /etc/patroni/etcd-client.crt
#   /etc/mantle/server.crt worker1-1:8008 postgres://worker1-1:5432 postgres://worker1-1:6432
#
# The metrics are in docs/metrics.md, the alerts in alerts.yml beside this file.
set -euf
export LC_ALL=C
ANSWER_S=10

if [ $# -ne 2 ]; then
    echo "usage: certificates.sh LIST PAGE" >&2
    exit 2
fi
list=$1 page=$2
if ! [ -r "$list" ]; then
    echo "$list cannot be read" >&2
    exit 2
fi
new="$page.new"  # node_exporter reads nothing but *.prom
trap 'rm -f "$new"' EXIT

# The lines of the list that are no comments.
lines() {
    awk 'NF && $1 !~ /^#/' "$list"
}

# When the first certificate of a file to expire does so, in seconds since 1970. 0: there is none, or one cannot be read.
expires() {
    ends=$(openssl storeutl -noout -text -certs -passin pass: "$1" 2>/dev/null </dev/null | sed -n 's/^ *Not After *: *//p')
    read_ones=$(printf '%s' "$ends" | grep -c '' || true)
    there=$(grep -c 'BEGIN CERTIFICATE' "$1" 2>/dev/null || true)
    if [ "$read_ones" -gt 0 ] && [ "$read_ones" = "$there" ]; then
        printf '%s\n' "$ends" | date -f - +%s | sort -n | head -n 1
    else
        echo 0
    fi
}

# The fingerprint of the first certificate that is read from standard input.
fingerprint() {
    openssl x509 -noout -fingerprint -sha256 2>/dev/null || true
}

# The fingerprint of the certificate that a port shows. A server that asks for a certificate of its client's shows its own first.
shown() {
    case $1 in
        postgres://*) set -- -starttls postgres -connect "${1#postgres://}" ;;
        *) set -- -connect "$1" ;;
    esac
    timeout "$ANSWER_S" openssl s_client "$@" </dev/null 2>/dev/null | fingerprint
}

# A value of a label, with its quotes.
quoted() {
    printf '"%s"' "$(printf '%s' "$1" | sed 's/[\\"]/\\&/g')"
}

twice=$(lines | awk '{print $1}' | sort | uniq -d)
if [ -n "$twice" ]; then
    echo "$list names a file in two lines: $twice" >&2
    exit 2
fi

{
    echo '# HELP mantle_certificate_expires_seconds Unix time at which the first certificate of a file expires; 0: the file cannot be read.'
    echo '# TYPE mantle_certificate_expires_seconds gauge'
    lines | while read -r file _; do
        echo "mantle_certificate_expires_seconds{file=$(quoted "$file")} $(expires "$file")"
    done
    echo '# HELP mantle_certificate_loaded 1: the port shows the first certificate of the file; 0: another one, or none.'
    echo '# TYPE mantle_certificate_loaded gauge'
    lines | while read -r file addresses; do
        own=$(cat "$file" 2>/dev/null | fingerprint)
        for address in $addresses; do
            loaded=0
            if [ -n "$own" ] && [ "$(shown "$address")" = "$own" ]; then
                loaded=1
            fi
            echo "mantle_certificate_loaded{file=$(quoted "$file"),address=$(quoted "$address")} $loaded"
        done
    done
    echo '# HELP mantle_certificates_checked_seconds Unix time of the last run of certificates.sh.'
    echo '# TYPE mantle_certificates_checked_seconds gauge'
    echo "mantle_certificates_checked_seconds $(date +%s)"
} >"$new"
chmod 644 "$new"
mv "$new" "$page"

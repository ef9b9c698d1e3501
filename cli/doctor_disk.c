/* SPDX-License-Identifier: Apache-2.0 */
/* doctor: the directory, its file system and disk, and the machine's NVMe devices. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "cli.h"
#include "doctor.h"

/* statx of Linux 6.1 (direct I/O) and 6.11 (atomic writes): bits and places that older headers do not name. */
#define MASK_DIOALIGN 0x2000u
#define MASK_WRITE_ATOMIC 0x10000u
#define AT_DIO_MEM 0x98u
#define AT_DIO_OFFSET 0x9cu
#define AT_ATOMIC_MAX 0xacu

static uint32_t field(const struct statx *stx, size_t at)
{
	uint32_t v;

	memcpy(&v, (const char *)stx + at, sizeof(v));
	return v;
}

static const char *file_system(uint64_t magic)
{
	static const struct {
		uint64_t magic;
		const char *name;
	} known[] = {{0xef53, "ext4"},	   {0x58465342, "xfs"}, {0x9123683e, "btrfs"},	 {0x01021994, "tmpfs"},
		     {0x794c7630, "overlay"}, {0x6969, "nfs"},	{0x2fc12fc1, "zfs"},	 {0xf2f52010, "f2fs"},
		     {0x65735546, "fuse"}};

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (known[i].magic == magic)
			return known[i].name;
	return "other";
}

static void probe_directory(struct doctor *d)
{
	bool writable = access(d->dir, W_OK | X_OK) == 0;
	char free_text[32] = "?";
	struct statfs fs;
	const char *type = "unknown";

	if (!statfs(d->dir, &fs)) {
		type = file_system((uint64_t)(uint32_t)fs.f_type);
		cli_bytes(free_text, (double)fs.f_bavail * (double)fs.f_bsize);
	}
	doctor_add(d, "directory", writable ? DOCTOR_YES : DOCTOR_NO, "a place for a store", "a directory that you may write to",
		   "%s: %s, %s free, %s", d->dir, type, free_text, writable ? "writable" : "not writable");
}

/* A file in dir that has no name (or loses it at once); -errno. */
static int nameless_file(const char *dir)
{
	int fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	char path[4096];

	if (fd >= 0)
		return fd;
	if (snprintf(path, sizeof(path), "%s/.tenuto-doctor-XXXXXX", dir) >= (int)sizeof(path))
		return -ENAMETOOLONG;
	fd = mkostemp(path, O_CLOEXEC);
	if (fd < 0)
		return -errno;
	unlink(path);
	return fd;
}

static void probe_atomic(struct doctor *d, const struct statx *stx)
{
	uint32_t max = stx->stx_mask & MASK_WRITE_ATOMIC ? field(stx, AT_ATOMIC_MAX) : 0;
	char text[32];

	if (max)
		doctor_add(d, "atomic writes", DOCTOR_YES, "blocks never torn (else checksums tell)", "", "up to %s",
			   cli_bytes(text, max));
	else
		doctor_add(d, "atomic writes", DOCTOR_NO, "blocks never torn (else checksums tell)",
			   "a drive that has them, Linux 6.11 or later, and XFS or ext4 with large blocks", "none reported");
}

static void probe_direct(struct doctor *d)
{
	static const char gives[] = "transfers past the page cache; without a copy where objects and memory begin at such multiples";
	static const char todo[] = "put the store on ext4 or XFS on a local disk";
	struct statx stx;
	int fd = nameless_file(d->dir);
	bool known, direct;

	if (fd < 0) {
		doctor_add(d, "O_DIRECT", DOCTOR_NO, gives, "a directory that you may write to", "not tried: %s", strerror(-fd));
		return;
	}
	memset(&stx, 0, sizeof(stx));
	known = !statx(fd, "", AT_EMPTY_PATH, MASK_DIOALIGN | MASK_WRITE_ATOMIC, &stx) && (stx.stx_mask & MASK_DIOALIGN);
	direct = !(known && field(&stx, AT_DIO_OFFSET) == 0) && fcntl(fd, F_SETFL, O_DIRECT) == 0;
	if (!direct)
		doctor_add(d, "O_DIRECT", DOCTOR_NO, gives, todo, "not on this file system: buffered I/O is used");
	else if (known)
		doctor_add(d, "O_DIRECT", DOCTOR_YES, gives, "",
			   "works, from multiples of %u bytes in the file and %u bytes in memory", field(&stx, AT_DIO_OFFSET),
			   field(&stx, AT_DIO_MEM));
	else
		doctor_add(d, "O_DIRECT", DOCTOR_YES, gives, "",
			   "works; from multiples of what is not told (Linux 6.1 and later do): Tenuto keeps to the disk's "
			   "blocks, or 4096 bytes");
	probe_atomic(d, &stx);
	close(fd);
}

/* Reads queue/<name> of a block device; of a partition, that of its disk. */
static void queue_line(unsigned maj, unsigned min, const char *name, char *line, size_t bytes)
{
	char path[160];

	snprintf(path, sizeof(path), "/sys/dev/block/%u:%u/queue/%s", maj, min, name);
	doctor_read_line(path, line, bytes);
	if (line[0])
		return;
	snprintf(path, sizeof(path), "/sys/dev/block/%u:%u/../queue/%s", maj, min, name);
	doctor_read_line(path, line, bytes);
}

static void probe_disk_below(struct doctor *d)
{
	char link[64], target[512], lbs[16], pbs[16], rot[16], max[16];
	struct stat st;
	ssize_t n;

	if (stat(d->dir, &st))
		return;
	snprintf(link, sizeof(link), "/sys/dev/block/%u:%u", major(st.st_dev), minor(st.st_dev));
	n = readlink(link, target, sizeof(target) - 1);
	if (n <= 0) {
		doctor_add(d, "disk", DOCTOR_PARTLY, "what the store's speed rests on", "put the store on a local disk",
			   "no block device of its own (memory, network, or several)");
		return;
	}
	target[n] = '\0';
	queue_line(major(st.st_dev), minor(st.st_dev), "logical_block_size", lbs, sizeof(lbs));
	queue_line(major(st.st_dev), minor(st.st_dev), "physical_block_size", pbs, sizeof(pbs));
	queue_line(major(st.st_dev), minor(st.st_dev), "rotational", rot, sizeof(rot));
	queue_line(major(st.st_dev), minor(st.st_dev), "max_sectors_kb", max, sizeof(max));
	/* Virtual disks often say rotational without meaning it. */
	doctor_add(d, "disk", rot[0] == '1' ? DOCTOR_PARTLY : DOCTOR_YES, "what the store's speed rests on",
		   "if it is a hard disk, put the store on an SSD; if it is a virtual one, the kernel cannot know: `tenuto bench mix "
		   "DIR` measures what it does",
		   "%.40s: blocks of %s bytes (addressed by %s), up to %s KiB per request%s",
		   strrchr(target, '/') ? strrchr(target, '/') + 1 : target, pbs[0] ? pbs : "?", lbs[0] ? lbs : "?",
		   max[0] ? max : "?", rot[0] == '1' ? "; the kernel calls it a hard disk" : "");
}

static void probe_namespace(struct doctor *d, const char *ctrl, const char *ns, const char *model)
{
	char path[640], size[32];
	uint64_t lbs, pbs, meta;

	snprintf(path, sizeof(path), "/sys/class/nvme/%.60s/%.60s/size", ctrl, ns);
	cli_bytes(size, (double)doctor_read_number(path, 0) * 512);
	snprintf(path, sizeof(path), "/sys/class/nvme/%.60s/%.60s/queue/logical_block_size", ctrl, ns);
	lbs = doctor_read_number(path, 0);
	snprintf(path, sizeof(path), "/sys/class/nvme/%.60s/%.60s/queue/physical_block_size", ctrl, ns);
	pbs = doctor_read_number(path, 0);
	snprintf(path, sizeof(path), "/sys/class/nvme/%.60s/%.60s/metadata_bytes", ctrl, ns);
	meta = doctor_read_number(path, 0);
	doctor_add(d, "NVMe", lbs < 4096 && pbs >= 4096 ? DOCTOR_PARTLY : DOCTOR_YES, "the fastest local store",
		   "it writes 4096 bytes at once, but is addressed by less: an LBA format of 4096 bytes may be faster: `nvme id-ns -H`, "
		   "`nvme format --lbaf` (ERASES the namespace)",
		   "%.20s %.40s %s, addressed by %llu bytes%s", ns, model, size, (unsigned long long)lbs, meta ? " and metadata" : "");
}

static void probe_nvme(struct doctor *d)
{
	DIR *class = opendir("/sys/class/nvme");
	struct dirent *c, *e;
	size_t before = d->n;

	while (class && (c = readdir(class))) {
		char path[320], model[64];
		DIR *ctrl;

		if (c->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "/sys/class/nvme/%.60s/model", c->d_name);
		doctor_read_line(path, model, sizeof(model));
		snprintf(path, sizeof(path), "/sys/class/nvme/%.60s", c->d_name);
		ctrl = opendir(path);
		while (ctrl && (e = readdir(ctrl)))
			if (!strncmp(e->d_name, "nvme", 4) && strchr(e->d_name + 4, 'n') && d->n < DOCTOR_MAX - 12)
				probe_namespace(d, c->d_name, e->d_name, model);
		if (ctrl)
			closedir(ctrl);
	}
	if (class)
		closedir(class);
	if (d->n == before)
		doctor_add(d, "NVMe", DOCTOR_NO, "the fastest local store", "a local NVMe drive", "no controller found");
}

void doctor_probe_disk(struct doctor *d)
{
	probe_directory(d);
	probe_direct(d);
	probe_disk_below(d);
	probe_nvme(d);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* See claim.h. */
#include "nvme/claim.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "nvme/resident.h"

#define DEVICES "/sys/bus/pci/devices"
#define USE_BYTES 160u
#define PART_BYTES 4096u

/* ---- what uses it ---------------------------------------------------------------------------------------------------- */

/* The first entry of a directory of sysfs; empty: none. */
static void first_entry(const char *path, char *name, size_t bytes)
{
	DIR *d = opendir(path);
	struct dirent *e;

	name[0] = '\0';
	while (d && !name[0] && (e = readdir(d)))
		if (e->d_name[0] != '.')
			snprintf(name, bytes, "%.*s", (int)bytes - 1, e->d_name);
	if (d)
		closedir(d);
}

static void read_word(const char *path, char *word, size_t bytes)
{
	FILE *f = fopen(path, "re");

	word[0] = '\0';
	if (!f)
		return;
	if (fgets(word, (int)bytes, f))
		word[strcspn(word, "\n ")] = '\0';
	fclose(f);
}

/* Where the device, by its numbers, is mounted; empty: nowhere that this process sees. */
static void mounted_at(const char *numbers, char *where, size_t bytes)
{
	FILE *f = fopen("/proc/self/mountinfo", "re");
	char line[PATH_MAX + 256], device[32], at[PATH_MAX];

	where[0] = '\0';
	while (f && !where[0] && fgets(line, sizeof(line), f))
		if (sscanf(line, "%*s %*s %31s %*s %4095s", device, at) == 2 && strcmp(device, numbers) == 0)
			snprintf(where, bytes, "%.*s", (int)bytes - 1, at);
	if (f)
		fclose(f);
}

static bool swaps(const char *block)
{
	FILE *f = fopen("/proc/swaps", "re");
	char line[PATH_MAX], path[PATH_MAX], device[64];
	bool yes = false;

	snprintf(device, sizeof(device), "/dev/%.50s", block);
	while (f && !yes && fgets(line, sizeof(line), f))
		yes = sscanf(line, "%4095s", path) == 1 && strcmp(path, device) == 0;
	if (f)
		fclose(f);
	return yes;
}

/* btrfs or ZFS at either end of a disk or partition; NULL: none that this user can see. */
static const char *resident_of(const char *block)
{
	unsigned char part[PART_BYTES];
	const char *who = NULL;
	char path[64];
	uint64_t all, n;
	off_t end;
	int fd;

	snprintf(path, sizeof(path), "/dev/%.50s", block);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	end = fd < 0 ? -1 : lseek(fd, 0, SEEK_END);
	all = end > 0 ? (uint64_t)end : 0;
	for (uint64_t at = 0; at < all && !who; at += n) {
		if (at >= TN_RESIDENT_ENDS && all - at > TN_RESIDENT_ENDS)
			at = (all - TN_RESIDENT_ENDS) / PART_BYTES * PART_BYTES;
		n = all - at < PART_BYTES ? all - at : PART_BYTES;
		if (pread(fd, part, n, (off_t)at) != (ssize_t)n)
			break; /* each read of a sick drive may take the kernel's time-out */
		who = tn_resident(part, at, n, all);
	}
	if (fd >= 0)
		close(fd);
	return who;
}

/* use stays empty if a disk or partition is free. */
static void use_of(const char *dir, const char *block, char *use)
{
	char path[PATH_MAX], numbers[32], word[64];
	const char *who;

	snprintf(path, sizeof(path), "%.3000s/holders", dir);
	first_entry(path, word, sizeof(word));
	if (word[0]) {
		snprintf(use, USE_BYTES, "/dev/%.40s is part of /dev/%.40s (RAID, LVM or encryption)", block, word);
		return;
	}
	snprintf(path, sizeof(path), "%.3000s/dev", dir);
	read_word(path, numbers, sizeof(numbers));
	mounted_at(numbers, word, sizeof(word));
	if (word[0])
		snprintf(use, USE_BYTES, "/dev/%.40s is mounted at %.60s", block, word);
	else if (swaps(block))
		snprintf(use, USE_BYTES, "/dev/%.40s is swap space", block);
	if (use[0])
		return;
	who = resident_of(block);
	if (who)
		snprintf(use, USE_BYTES, "/dev/%.40s holds %s, in use or not (%s /dev/%.40s if not)", block, who,
			 strcmp(who, "ZFS") ? "wipefs -a" : "zpool labelclear -f", block);
}

/*
 * Who has a block device to itself, as a mount, another file system's journal or a RAID has, keeps others from opening it with
 * O_EXCL (open(2)), the whole disk for the sake of a partition, too. A user who may not read it does not learn that.
 */
static bool is_held(const char *block)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/dev/%.50s", block);
	fd = open(path, O_RDONLY | O_EXCL | O_CLOEXEC);
	if (fd >= 0)
		close(fd);
	return fd < 0 && errno == EBUSY;
}

/* A namespace's disk and its partitions. */
static void use_of_disk(const char *dir, const char *disk, char *use)
{
	DIR *d = opendir(dir);
	struct dirent *e;
	char path[PATH_MAX];

	use_of(dir, disk, use);
	while (d && !use[0] && (e = readdir(d))) {
		if (strncmp(e->d_name, disk, strlen(disk)))
			continue;
		snprintf(path, sizeof(path), "%.3000s/%.200s", dir, e->d_name);
		use_of(path, e->d_name, use);
	}
	if (d)
		closedir(d);
	if (!use[0] && is_held(disk))
		snprintf(use, USE_BYTES, "/dev/%.40s is in use: somebody has it open for itself alone", disk);
}

/*
 * The disk of an entry of a controller in sysfs: "nvme0n1", or for "nvme0c1n1", one path of a drive that can have several, the disk that programs use, which
 * has the number of the drive and not of the controller. False: the entry is none.
 */
static bool disk_of(const char *entry, char *disk, size_t bytes)
{
	unsigned first, path, last;
	int end = 0;

	if (sscanf(entry, "nvme%uc%un%u%n", &first, &path, &last, &end) == 3 && !entry[end])
		snprintf(disk, bytes, "nvme%un%u", first, last);
	else if (sscanf(entry, "nvme%un%u%n", &first, &last, &end) == 2 && !entry[end])
		snprintf(disk, bytes, "%s", entry);
	else
		return false;
	return true;
}

/* The first thing that uses a block device of the controller; disk: one of them, or empty: it has none. */
static void find_use(const char *bdf, char *disk, size_t bytes, char *use)
{
	char path[PATH_MAX], controller[64], dir[PATH_MAX];
	struct dirent *e;
	DIR *d;

	use[0] = disk[0] = '\0';
	snprintf(path, sizeof(path), DEVICES "/%s/nvme", bdf);
	first_entry(path, controller, sizeof(controller));
	snprintf(path, sizeof(path), "/sys/class/nvme/%s", controller);
	d = controller[0] ? opendir(path) : NULL;
	while (d && !use[0] && (e = readdir(d))) {
		if (!disk_of(e->d_name, disk, bytes))
			continue;
		snprintf(dir, sizeof(dir), "/sys/class/block/%.60s", disk);
		use_of_disk(dir, disk, use);
	}
	if (d)
		closedir(d);
}

/* ---- may it be taken ----------------------------------------------------------------------------------------------------- */

static void how_to_bind(const struct tn_nvme_found *f, const char *disk, char *text, size_t bytes)
{
	if (*f->driver)
		snprintf(text, bytes, "the driver %s has it%s%s: if nothing on it is needed, write vfio-pci to " DEVICES "/%s/driver_override, the address to "
			 DEVICES "/%s/driver/unbind, and again to /sys/bus/pci/drivers_probe", f->driver, disk[0] ? ", as /dev/" : "", disk, f->bdf, f->bdf);
	else
		snprintf(text, bytes, "no driver has it: if nothing on it is needed, write vfio-pci to " DEVICES
			 "/%s/driver_override, and the address to /sys/bus/pci/drivers_probe", f->bdf);
}

void tn_nvme_lacks(const struct tn_nvme_found *f, char *text, size_t bytes)
{
	char disk[64], use[USE_BYTES];

	text[0] = '\0';
	if (f->vfio)
		return;
	find_use(f->bdf, disk, sizeof(disk), use);
	if (use[0])
		snprintf(text, bytes, "%s: take another drive", use);
	else if (f->group < 0)
		snprintf(text, bytes, "no IOMMU translates its addresses: switch the IOMMU on (intel_iommu=on, amd_iommu=on; in a virtual machine, a virtual one)");
	else if (strcmp(f->driver, "vfio-pci") == 0)
		snprintf(text, bytes, "no right to /dev/vfio/%d: give this user read and write access to it", f->group);
	else
		how_to_bind(f, disk, text, bytes);
}

/* A disk of a drive that can have several paths is one of each of their controllers. */
static bool has_disk(const char *controller, const char *disk)
{
	char path[PATH_MAX], its[64];
	struct dirent *e;
	bool yes = false;
	DIR *d;

	snprintf(path, sizeof(path), "/sys/class/nvme/%.200s", controller);
	d = opendir(path);
	while (d && !yes && (e = readdir(d)))
		yes = disk_of(e->d_name, its, sizeof(its)) && strcmp(its, disk) == 0;
	if (d)
		closedir(d);
	return yes;
}

/* The controller of "nvme0", "nvme0n1" or "nvme0n1p1", whose number is not always the disk's; empty: none. */
static void controller_of(const char *base, char *controller, size_t bytes)
{
	unsigned first, last;
	char disk[64];
	struct dirent *e;
	DIR *d;

	if (sscanf(base, "nvme%un%u", &first, &last) != 2) {
		snprintf(controller, bytes, "%.*s", (int)bytes - 1, base);
		return;
	}
	controller[0] = '\0';
	snprintf(disk, sizeof(disk), "nvme%un%u", first, last);
	d = opendir("/sys/class/nvme");
	while (d && !controller[0] && (e = readdir(d)))
		if (e->d_name[0] != '.' && has_disk(e->d_name, disk))
			snprintf(controller, bytes, "%.*s", (int)bytes - 1, e->d_name);
	if (d)
		closedir(d);
}

/* "/dev/nvme0n1" and "/dev/nvme0" to the address of their controller. */
static int address_of(const char *name, char *address)
{
	const char *base = strrchr(name, '/') ? strrchr(name, '/') + 1 : name;
	char path[PATH_MAX], target[PATH_MAX], controller[64];
	const char *last;
	ssize_t n;

	if (strncmp(base, "nvme", 4)) {
		snprintf(address, TN_NVME_BDF_BYTES, "%.*s", (int)TN_NVME_BDF_BYTES - 1, name);
		return 0;
	}
	controller_of(base, controller, sizeof(controller));
	snprintf(path, sizeof(path), "/sys/class/nvme/%s/device", controller);
	n = readlink(path, target, sizeof(target) - 1);
	if (n < 0)
		return tn_fail(-EINVAL, "%s: no NVMe drive of this machine's; `tenuto doctor` lists them", name);
	target[n] = '\0';
	last = strrchr(target, '/');
	snprintf(address, TN_NVME_BDF_BYTES, "%.*s", (int)TN_NVME_BDF_BYTES - 1, last ? last + 1 : target);
	return 0;
}

int tn_nvme_claim(const char *name, char address[TN_NVME_BDF_BYTES])
{
	struct tn_nvme_found found;
	char why[464];
	int rc = *name ? address_of(name, address) : tn_fail(-EINVAL, "no address of a drive; one looks like 0000:03:00.0, and `tenuto doctor` lists them");

	if (rc)
		return rc;
	if (!tn_nvme_vfio_look(address, &found))
		return tn_fail(-EINVAL, "%s: no NVMe controller of this machine's; an address looks like 0000:03:00.0, and `tenuto doctor` lists them", name);
	tn_nvme_lacks(&found, why, sizeof(why));
	if (why[0])
		return tn_fail(found.group < 0 ? -ENOTSUP : strcmp(found.driver, "vfio-pci") ? -EBUSY : -EACCES, "%s: %s", address, why);
	return 0;
}

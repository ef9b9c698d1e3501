/* SPDX-License-Identifier: Apache-2.0 */
/* doctor: the plugins that are found, those that are refused, and the devices of those that drive some. Plugins are opened as an engine opens them. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <tenuto/device_file.h>
#include <tenuto/device_memory.h>
#include <tenuto/plugin.h>
#include <tenuto/xfer.h>

#include "doctor.h"

#define ENTRIES 32
#define START_SECONDS 3 /* that a library has to start */
#define DEVICES 8 /* of one driver, that are shown */
#define GIVES "what libtenuto does not link: memory of devices"

/* What findings point to. */
static struct tn_plugin_info info[ENTRIES];
static char name[ENTRIES][TN_PLUGIN_NAME_MAX + 16], todo[ENTRIES][512];
static char device_name[ENTRIES][DEVICES][TN_PLUGIN_NAME_MAX + 16];

static void probe_device(struct doctor *d, const struct tn_device_driver *driver, int plugin, uint32_t device)
{
	static const char gives[] = "pages in its memory, loaded and saved";
	char *is = device_name[plugin][device];
	struct tn_device_properties p = {0};
	int rc = driver->ops->properties(driver, device, &p);

	snprintf(is, sizeof(device_name[plugin][device]), "%s device %u", info[plugin].name, device);
	if (rc) {
		doctor_add(d, is, DOCTOR_NO, gives, "ask the device's own tool how it is", "%s", strerror(-rc));
		return;
	}
	doctor_add(d, is, DOCTOR_YES, gives, "", "%.63s, %.1f GiB, %u multiprocessors; streams wait for words: %s, sums: %s, exports: %s", p.name,
		   (double)p.bytes / (1 << 30), p.sms, p.words ? "yes" : "no", p.sums ? "yes" : "no", p.exports ? "yes" : "no");
}

static void probe_driver(struct doctor *d, int plugin)
{
	const struct tn_plugin_info *i = &info[plugin];
	const struct tn_device_driver *driver;
	char detail[256] = "";
	int n = tn_device_driver_open(i->name, &driver);

	if (n == 0)
		n = driver->ops->count(driver, detail, sizeof(detail));
	if (n < 0)
		snprintf(todo[plugin], sizeof(todo[plugin]), "%s", detail[0] ? detail : strerror(-n));
	else
		snprintf(todo[plugin], sizeof(todo[plugin]), "make a device visible to this process");
	doctor_add(d, name[plugin], n > 0 ? DOCTOR_YES : DOCTOR_PARTLY, GIVES, todo[plugin], "device driver for Tenuto %s, %d device%s: %s", i->built_for,
		   n > 0 ? n : 0, n == 1 ? "" : "s", i->path);
	for (int k = 0; k < n && k < DEVICES; k++)
		probe_device(d, driver, plugin, (uint32_t)k);
}

/* The library may take its time: without its kernel driver, that of cuFile was seen to spin for minutes. */
static void probe_file_transport(struct doctor *d, int plugin)
{
	static const char *const ways[] = {
		[TN_DEVICE_FILE_HOST] = "by way of host memory (compatibility mode), which transfer \"auto\" does not use",
		[TN_DEVICE_FILE_MODULE] = "by its kernel module nvidia-fs",
		[TN_DEVICE_FILE_P2PDMA] = "by the kernel's PCI P2PDMA",
	};
	static const char gives[] = "bytes between files and devices without host memory";
	const struct tn_plugin_info *i = &info[plugin];
	struct tn_device_file_properties p = {0};
	const struct tn_device_file_ops *ops;
	struct timespec now;
	char detail[256] = "";
	int rc;

	clock_gettime(CLOCK_MONOTONIC, &now);
	rc = tn_device_file_open(i->name, &ops);
	if (rc == 0)
		rc = ops->start(((uint64_t)now.tv_sec + START_SECONDS) * 1000000000 + (uint64_t)now.tv_nsec, detail, sizeof(detail));
	if (rc == 0)
		rc = ops->describe(&p, detail, sizeof(detail));
	if (rc) {
		snprintf(todo[plugin], sizeof(todo[plugin]), "%s", detail[0] ? detail : strerror(-rc));
		doctor_add(d, name[plugin], DOCTOR_PARTLY, gives, todo[plugin], "file transport for Tenuto %s, does not start: %s", i->built_for, i->path);
		return;
	}
	doctor_add(d, name[plugin], p.way == TN_DEVICE_FILE_HOST ? DOCTOR_PARTLY : DOCTOR_YES, gives,
		   "for transfers past host memory: load nvidia-fs; or CUDA 12.8, a kernel of 6.2 with PCI P2PDMA, and both use_pci_p2pdma keys of cufile.json",
		   "file transport for Tenuto %s, %s, library %u.%u, module %u.%u: %s", i->built_for, ways[p.way], p.version / 1000, p.version % 1000 / 10,
		   p.module_major, p.module_minor, i->path);
}

/* An agent that nobody can reach makes the backend. */
static int try_backend(const char *backend, struct tn_xfer_backend_info *out)
{
	struct tn_xfer_agent_opts opts;
	struct tn_xfer_agent *agent;
	int rc;

	tn_xfer_agent_opts_init(&opts);
	opts.name = "doctor";
	opts.listen = "none";
	opts.backends = &backend;
	opts.nbackends = 1;
	rc = tn_xfer_agent_create(&opts, &agent);
	if (rc)
		return rc;
	rc = tn_xfer_backend_get(agent, 0, out);
	tn_xfer_agent_destroy(agent);
	return rc;
}

static void probe_backend(struct doctor *d, int plugin)
{
	static const char gives[] = "a way for the transfer agent to move bytes";
	struct tn_xfer_backend_info b = {.size = sizeof(b)};
	const struct tn_plugin_info *i = &info[plugin];

	int rc = try_backend(i->name, &b);

	if (rc) {
		snprintf(todo[plugin], sizeof(todo[plugin]), "%s", tn_error_last()->text);
		doctor_add(d, name[plugin], DOCTOR_PARTLY, gives, todo[plugin], "transfer backend for Tenuto %s, cannot be used%s: %s", i->built_for,
			   rc == -EINVAL ? " without parameters" : "", i->path);
		return;
	}
	doctor_add(d, name[plugin], DOCTOR_YES, gives, "", "transfer backend for Tenuto %s: %s", i->built_for, i->path);
}

static void probe_plugin(struct doctor *d, int plugin)
{
	const struct tn_plugin_info *i = &info[plugin];

	snprintf(name[plugin], sizeof(name[plugin]), "plugin %s", i->name);
	if (i->status) {
		snprintf(todo[plugin], sizeof(todo[plugin]), "%s", i->why);
		doctor_add(d, name[plugin], DOCTOR_NO, GIVES, todo[plugin], "refused: %s", i->path);
	} else if (i->kind == TN_PLUGIN_DEVICE) {
		probe_driver(d, plugin);
	} else if (i->kind == TN_PLUGIN_DEVICE_FILE) {
		probe_file_transport(d, plugin);
	} else if (i->kind == TN_PLUGIN_XFER) {
		probe_backend(d, plugin);
	} else if (i->kind == TN_PLUGIN_XFER_DIRECTORY) {
		doctor_add(d, name[plugin], DOCTOR_YES, "transfer agents find each other by name", "", "directory of agents for Tenuto %s: %s", i->built_for, i->path);
	} else {
		doctor_add(d, name[plugin], DOCTOR_YES, GIVES, "", "for Tenuto %s: %s", i->built_for, i->path);
	}
}

/* A directory that is not there is no fault: not every machine has plugins. */
static void probe_directory(struct doctor *d, int at)
{
	const struct tn_plugin_info *i = &info[at];

	snprintf(name[at], sizeof(name[at]), "plugin directory");
	snprintf(todo[at], sizeof(todo[at]), "%s",
		 i->status == -ENOENT ? "put plugins there, or name another directory in TENUTO_PLUGIN_PATH" : i->why);
	doctor_add(d, name[at], i->status ? DOCTOR_NO : DOCTOR_YES, "plugins are looked for there", todo[at], "%s%s", i->path,
		   i->status == -ENOENT ? " is not there" : i->status ? " is refused" : "");
}

void doctor_probe_plugins(struct doctor *d)
{
	int n = tn_plugin_list(info, ENTRIES), found = 0;

	if (n < 0) {
		snprintf(todo[0], sizeof(todo[0]), "%s", tn_error_last()->text);
		doctor_add(d, "plugins", DOCTOR_NO, GIVES, todo[0], "not looked for: %s", strerror(-n));
		return;
	}
	for (int i = 0; i < n && i < ENTRIES; i++)
		found += info[i].name[0] && info[i].status == 0;
	doctor_add(d, "plugins", found ? DOCTOR_YES : DOCTOR_NO, GIVES, "for engines whose KV pages lie on a device: install its plugin (docs/plugins.md)",
		   "%d found and opened", found);
	for (int i = 0; i < n && i < ENTRIES; i++) {
		if (info[i].name[0])
			probe_plugin(d, i);
		else
			probe_directory(d, i);
	}
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * doctor: IOMMU, VFIO, CUDA, GPUDirect Storage. Libraries are opened by name, as plugins would
 * find them; the program itself depends on none.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <tenuto/admin.h>

#include "doctor.h"

#define DRIVES 16

static unsigned count_entries(const char *path)
{
	DIR *dir = opendir(path);
	struct dirent *e;
	unsigned n = 0;

	while (dir && (e = readdir(dir)))
		n += e->d_name[0] != '.';
	if (dir)
		closedir(dir);
	return n;
}

static void probe_iommu(struct doctor *d)
{
	unsigned groups = count_entries("/sys/kernel/iommu_groups");
	bool vfio = access("/dev/vfio/vfio", F_OK) == 0, allowed = access("/dev/vfio/vfio", R_OK | W_OK) == 0;
	bool module = access("/sys/module/vfio_pci", F_OK) == 0;

	doctor_add(d, "IOMMU", groups ? DOCTOR_YES : DOCTOR_NO, "safe access to a drive from user space (nvme:ADDRESS)",
		   "enable VT-d or AMD-Vi in the firmware and boot with intel_iommu=on (Intel); in a VM: a virtual IOMMU",
		   "%u groups", groups);
	doctor_add(d, "VFIO", vfio && allowed ? DOCTOR_YES : vfio ? DOCTOR_PARTLY : DOCTOR_NO,
		   "NVMe drives without the kernel (nvme:ADDRESS)",
		   vfio ? "access to /dev/vfio/vfio and the group of the device"
			: "modprobe vfio-pci, and an IOMMU", "/dev/vfio/vfio %s%s",
		   !vfio ? "is missing" : allowed ? "is usable" : "is there, no permission", module ? ", vfio-pci loaded" : "");
}

/* Which drives a store could have as nvme:ADDRESS, and what each lacks. */
static void probe_drives(struct doctor *d)
{
	static struct tn_admin_drive drive[DRIVES];
	int n = tn_admin_drives(drive, DRIVES);

	for (int i = 0; i < n && i < DRIVES; i++) {
		char group[32] = "no IOMMU";

		if (drive[i].iommu_group >= 0)
			snprintf(group, sizeof(group), "IOMMU group %d", drive[i].iommu_group);
		doctor_add(d, "raw NVMe", drive[i].usable ? DOCTOR_YES : DOCTOR_NO, "a store without file system and kernel", drive[i].lacks,
			   "%s: driver %s, %s", drive[i].address, drive[i].driver[0] ? drive[i].driver : "none", group);
	}
}

static void probe_cuda(struct doctor *d)
{
	static const char gives[] = "what plugin cuda needs: blocks to and from GPU memory";
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	int (*init)(unsigned), (*version)(int *), (*count)(int *);
	int v = 0, n = 0;

	if (!lib) {
		doctor_add(d, "CUDA", DOCTOR_NO, gives, "an NVIDIA GPU with its driver; in a container: --gpus all",
			   "libcuda.so.1 not found%s", access("/proc/driver/nvidia/version", F_OK) ? "" : ", but the kernel driver is");
		return;
	}
	*(void **)&init = dlsym(lib, "cuInit");
	*(void **)&version = dlsym(lib, "cuDriverGetVersion");
	*(void **)&count = dlsym(lib, "cuDeviceGetCount");
	if (init && version && count && init(0) == 0) {
		version(&v);
		count(&n);
	}
	doctor_add(d, "CUDA", n > 0 ? DOCTOR_YES : DOCTOR_PARTLY, gives, "a GPU visible to this process (nvidia-smi, --gpus all)",
		   n > 0 ? "driver for CUDA %d.%d, %d device(s)" : "libcuda.so.1 is there (CUDA %d.%d), %d devices", v / 1000,
		   v % 1000 / 10, n);
	dlclose(lib);
}

/* What a kernel module of NVIDIA's does without, from Linux 6.2 on. */
static bool kernel_has_p2pdma(void)
{
	struct utsname u;
	unsigned major = 0, minor = 0;

	return uname(&u) == 0 && sscanf(u.release, "%u.%u", &major, &minor) == 2 && (major > 6 || (major == 6 && minor >= 2));
}

/* Which way cuFile takes it says itself, once it has started (doctor_plugins.c). */
static void probe_gds(struct doctor *d)
{
	void *lib = dlopen("libcufile.so.0", RTLD_LAZY | RTLD_LOCAL);
	bool module = access("/sys/module/nvidia_fs", F_OK) == 0;

	doctor_add(d, "GPUDirect Storage", lib && module ? DOCTOR_YES : lib ? DOCTOR_PARTLY : DOCTOR_NO,
		   "what plugin gds needs: DMA between drive and GPU",
		   module ? "libcufile of the CUDA distribution" : "libcufile of the CUDA distribution, and nvidia-fs or PCI P2PDMA (CUDA 12.8, Linux 6.2)",
		   "libcufile %s, module nvidia_fs %s, Linux %s for PCI P2PDMA", lib ? "found" : "not found", module ? "loaded" : "not loaded",
		   kernel_has_p2pdma() ? "new enough" : "too old");
	if (lib)
		dlclose(lib);
}

void doctor_probe_devices(struct doctor *d)
{
	probe_iommu(d);
	probe_drives(d);
	probe_cuda(d);
	probe_gds(d);
}

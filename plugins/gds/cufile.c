/* SPDX-License-Identifier: Apache-2.0 */
#include "cufile.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>

/* What the numbers mean, as far as a caller does something else for it; all others are -EIO. */
static const struct {
	int error;
	int code;
	const char *text;
} meanings[] = {
	{1, -ENODEV, "no kernel driver: load nvidia-fs, or allow compatibility mode or PCI P2PDMA in cufile.json"},
	{4, -ENODEV, "nvidia-fs has another version than the library: install both from one release"},
	{7, -ENOTSUP, "this machine is not supported"},
	{8, -ENOTSUP, "this file is not supported: its file system or its drive"},
	{9, -ENODEV, "this GPU is not supported"},
	{10, -EIO, "nvidia-fs refused the request"},
	{11, -EIO, "the CUDA driver failed"},
	{12, -EFAULT, "the address is not of a device"},
	{13, -EFAULT, "the address is of a memory that it does not take"},
	{14, -EFAULT, "the range reaches beyond its memory"},
	{15, -EINVAL, "the CUDA context is not that of the memory"},
	{18, -ENOTSUP, "this kind of file is not supported"},
	{19, -ENOTSUP, "the file is open with flags that are not supported"},
	{20, -ENOTSUP, "the file is not open with O_DIRECT"},
	{22, -EINVAL, "an argument is wrong"},
	{25, -EACCES, "no permission for the file or the driver"},
	{27, -EBADF, "the file is not registered"},
	{28, -EEXIST, "the file is registered already"},
	{34, -ENOTSUP, "cufile.json leaves this file out"},
	{43, -ENOMEM, "no memory"},
};

static bool find(void *library, void *to, const char *name)
{
	*(void **)to = dlsym(library, name);
	return *(void **)to;
}

int cufile_load(struct cufile *out, char *detail, size_t detail_bytes)
{
	void *library = dlopen("libcufile.so.0", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	const char *missing = NULL;
	struct cufile c;
	const struct {
		const char *name;
		void *to;
	} functions[] = {
		{"cuFileDriverOpen", &c.driver_open},	      {"cuFileDriverGetProperties", &c.driver_properties},
		{"cuFileHandleRegister", &c.handle_register}, {"cuFileHandleDeregister", &c.handle_deregister},
		{"cuFileRead", &c.read},		      {"cuFileWrite", &c.write},
	};

	if (!library) {
		snprintf(detail, detail_bytes, "%s: install cuFile (libcufile of the CUDA distribution, or nvidia-cufile of PyPI with its directory in "
			 "LD_LIBRARY_PATH)", dlerror());
		return -ENOENT;
	}
	for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]) && !missing; i++)
		if (!find(library, functions[i].to, functions[i].name))
			missing = functions[i].name;
	if (missing) {
		snprintf(detail, detail_bytes, "libcufile.so.0 has no %s: install a cuFile of 1.4 or later", missing);
		return -EPROTO;
	}
	find(library, &c.version, "cuFileGetVersion");
	find(library, &c.batch_set_up, "cuFileBatchIOSetUp");
	find(library, &c.batch_submit, "cuFileBatchIOSubmit");
	find(library, &c.batch_status, "cuFileBatchIOGetStatus");
	find(library, &c.batch_cancel, "cuFileBatchIOCancel");
	find(library, &c.batch_destroy, "cuFileBatchIODestroy");
	find(library, &c.read_async, "cuFileReadAsync");
	find(library, &c.write_async, "cuFileWriteAsync");
	*out = c;
	return 0;
}

int cufile_fail(const char *call, int error, int cuda_error, char *detail, size_t detail_bytes)
{
	const char *text = "it did not say why";
	int code = -EIO;

	for (size_t i = 0; i < sizeof(meanings) / sizeof(meanings[0]); i++)
		if (meanings[i].error == error - CUFILE_ERROR_BASE) {
			text = meanings[i].text;
			code = meanings[i].code;
		}
	snprintf(detail, detail_bytes, "%s: error %d, CUDA %d: %s", call, error, cuda_error, text);
	return code;
}

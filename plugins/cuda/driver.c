/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's table, its loading, what devices there are, and how a call enters their contexts (driver.h). */
#include "driver.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <tenuto/plugin.h>

int tn_cuda_result(struct tn_cuda *cuda, struct tn_cuda_device *device, tn_cu_result result)
{
	int lost, rc = tn_cuda_errno(result, &lost);

	if (lost && device)
		__atomic_store_n(&device->lost, true, __ATOMIC_RELAXED);
	return rc;
}

bool tn_cuda_lost(const struct tn_cuda_device *device)
{
	return __atomic_load_n(&device->lost, __ATOMIC_RELAXED);
}

static int ask_device(struct tn_cuda *cuda, int ordinal, char *detail, size_t detail_bytes)
{
	struct tn_cuda_device *d = &cuda->device[ordinal];
	int unified = 0, host = 0, words = 0, major = 0;
	const struct {
		unsigned int what;
		int *value;
	} ask[] = {
		{TN_CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &d->sms},
		{TN_CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, &unified},
		{TN_CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, &host},
		{TN_CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, &words},
		{TN_CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &major},
	};
	tn_cu_result r = cuda->api.cuDeviceGet(&d->number, ordinal);

	for (unsigned int i = 0; i < sizeof(ask) / sizeof(ask[0]) && r == TN_CUDA_SUCCESS; i++)
		r = cuda->api.cuDeviceGetAttribute(ask[i].value, ask[i].what, d->number);
	if (r != TN_CUDA_SUCCESS) {
		snprintf(detail, detail_bytes, "device %d does not say what it is: %s", ordinal, tn_cuda_name(&cuda->api, r));
		return tn_cuda_result(cuda, NULL, r);
	}
	if (!unified) {
		snprintf(detail, detail_bytes, "device %d has addresses of its own: use a GPU and a system with unified addressing", ordinal);
		return -ENOTSUP;
	}
	d->host_pointers = host;
	d->words = words && host;
	d->kernels_fit = tn_cuda_kernels_bytes > 0 && major >= 8;
	return 0;
}

static int load(struct tn_cuda *cuda, char *detail, size_t detail_bytes)
{
	tn_cu_result r;
	int rc = tn_cuda_api_load(&cuda->api, "libcuda.so.1", detail, detail_bytes);

	if (rc)
		return rc;
	r = cuda->api.cuDeviceGetCount(&cuda->ndevices);
	if (r != TN_CUDA_SUCCESS) {
		snprintf(detail, detail_bytes, "libcuda.so.1 cannot count devices: %s", tn_cuda_name(&cuda->api, r));
		return tn_cuda_result(cuda, NULL, r);
	}
	if (cuda->ndevices > TN_CUDA_DEVICES_MAX)
		cuda->ndevices = TN_CUDA_DEVICES_MAX;
	for (int i = 0; i < cuda->ndevices && !rc; i++)
		rc = ask_device(cuda, i, detail, detail_bytes);
	return rc;
}

int tn_cuda_load(struct tn_cuda *cuda, char *detail, size_t detail_bytes)
{
	int rc = 0;

	if (__atomic_load_n(&cuda->loaded, __ATOMIC_ACQUIRE))
		return 0;
	pthread_mutex_lock(&cuda->lock);
	if (!cuda->loaded)
		rc = load(cuda, detail, detail_bytes);
	if (!rc)
		__atomic_store_n(&cuda->loaded, true, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&cuda->lock);
	return rc;
}

static int count(const struct tn_device_driver *driver, char *detail, size_t detail_bytes)
{
	struct tn_cuda *cuda = tn_cuda_of(driver);
	int rc = tn_cuda_load(cuda, detail, detail_bytes);

	return rc ? rc : cuda->ndevices;
}

static int properties(const struct tn_device_driver *driver, uint32_t device, struct tn_device_properties *out)
{
	struct tn_cuda *cuda = tn_cuda_of(driver);
	struct tn_device_properties p = {.name = ""};
	struct tn_cuda_device *d;
	size_t bytes = 0;
	tn_cu_result r;
	int rc = tn_cuda_load(cuda, NULL, 0);

	if (rc)
		return rc;
	if (device >= (uint32_t)cuda->ndevices)
		return -EINVAL;
	d = &cuda->device[device];
	r = cuda->api.cuDeviceGetName(p.name, (int)sizeof(p.name), d->number);
	if (r == TN_CUDA_SUCCESS)
		r = cuda->api.cuDeviceGetUuid((tn_cu_uuid *)p.uuid, d->number);
	if (r == TN_CUDA_SUCCESS)
		r = cuda->api.cuDeviceTotalMem(&bytes, d->number);
	if (r != TN_CUDA_SUCCESS)
		return tn_cuda_result(cuda, d, r);
	p.bytes = bytes;
	p.sms = (uint32_t)d->sms;
	p.words = d->words;
	p.sums = d->host_pointers && (tn_cuda_context(d) ? d->sum != NULL : d->kernels_fit);
	p.exports = 1;
	*out = p;
	return 0;
}

/*
 * A kernel, or NULL. CUDA loads a function when it is first used, and may wait for the device then, which may stand at a word that the caller has yet to
 * raise. Asking for an attribute is a use.
 */
static struct CUfunc_st *load_kernel(struct tn_cuda *cuda, struct CUmod_st *module, const char *name)
{
	struct CUfunc_st *f;
	int most;

	if (cuda->api.cuModuleGetFunction(&f, module, name) == TN_CUDA_SUCCESS &&
	    cuda->api.cuFuncGetAttribute(&most, TN_CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, f) == TN_CUDA_SUCCESS)
		return f;
	return NULL;
}

static void load_kernels(struct tn_cuda *cuda, struct tn_cuda_device *d)
{
	struct CUfunc_st *copy, *sum;
	struct CUmod_st *module;

	if (cuda->api.cuModuleLoadData(&module, tn_cuda_kernels) != TN_CUDA_SUCCESS)
		return;
	copy = load_kernel(cuda, module, "tn_cuda_copy_kernel");
	sum = load_kernel(cuda, module, "tn_cuda_sum_kernel");
	if (copy && sum) {
		d->copy = copy;
		d->sum = sum;
	}
}

int tn_cuda_enter_context(struct tn_cuda *cuda, struct tn_cuda_device *d, struct CUctx_st *context, struct tn_cuda_scope *scope)
{
	tn_cu_result r = cuda->api.cuCtxPushCurrent(context);
	struct CUctx_st *popped;

	if (r != TN_CUDA_SUCCESS)
		return tn_cuda_result(cuda, d, r);
	*scope = (struct tn_cuda_scope){cuda, d, TN_CU_STREAM_CAPTURE_MODE_RELAXED};
	r = cuda->api.cuThreadExchangeStreamCaptureMode(&scope->mode);
	if (r != TN_CUDA_SUCCESS) {
		cuda->api.cuCtxPopCurrent(&popped);
		return tn_cuda_result(cuda, d, r);
	}
	return 0;
}

void tn_cuda_leave(struct tn_cuda_scope *scope)
{
	struct CUctx_st *popped;

	scope->cuda->api.cuThreadExchangeStreamCaptureMode(&scope->mode);
	scope->cuda->api.cuCtxPopCurrent(&popped);
}

/* The kernels are loaded before anybody else gets the context from us. */
static int open_device(struct tn_cuda *cuda, struct tn_cuda_device *d)
{
	struct CUctx_st *context = NULL;
	struct tn_cuda_scope scope;
	tn_cu_result r;
	int rc = 0;

	pthread_mutex_lock(&cuda->lock);
	if (!d->context) {
		r = cuda->api.cuDevicePrimaryCtxRetain(&context, d->number);
		rc = tn_cuda_result(cuda, d, r);
		if (!rc && d->kernels_fit)
			rc = tn_cuda_enter_context(cuda, d, context, &scope);
		if (!rc && d->kernels_fit) {
			load_kernels(cuda, d);
			tn_cuda_leave(&scope);
		}
		if (!rc)
			__atomic_store_n(&d->context, context, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&cuda->lock);
	return rc;
}

int tn_cuda_enter(struct tn_cuda *cuda, uint32_t device, struct tn_cuda_scope *scope)
{
	struct tn_cuda_device *d;
	int rc = tn_cuda_load(cuda, NULL, 0);

	if (rc)
		return rc;
	if (device >= (uint32_t)cuda->ndevices)
		return -EINVAL;
	d = &cuda->device[device];
	if (tn_cuda_lost(d))
		return -ENODEV;
	rc = tn_cuda_context(d) ? 0 : open_device(cuda, d);
	return rc ? rc : tn_cuda_enter_context(cuda, d, d->context, scope);
}

int tn_cuda_enter_any(struct tn_cuda *cuda, struct tn_cuda_scope *scope)
{
	struct CUctx_st *current = NULL;
	int rc = tn_cuda_load(cuda, NULL, 0);

	if (rc)
		return rc;
	for (int i = 0; i < cuda->ndevices; i++) {
		if (tn_cuda_context(&cuda->device[i]) && !tn_cuda_lost(&cuda->device[i]))
			return tn_cuda_enter(cuda, (uint32_t)i, scope);
	}
	if (cuda->api.cuCtxGetCurrent(&current) == TN_CUDA_SUCCESS && current)
		return tn_cuda_enter_context(cuda, NULL, current, scope);
	return tn_cuda_enter(cuda, 0, scope);
}

static struct tn_cuda cuda_state = {.lock = PTHREAD_MUTEX_INITIALIZER, .pins_lock = PTHREAD_MUTEX_INITIALIZER};

static const struct tn_device_driver_ops ops = {
	.size = sizeof(ops),
	.abi = TN_DEVICE_DRIVER_ABI,
	.name = "cuda",
	.count = count,
	.properties = properties,
	.register_range = tn_cuda_register_range,
	.unregister_range = tn_cuda_unregister_range,
	.pin = tn_cuda_pin,
	.unpin = tn_cuda_unpin,
	.stream_create = tn_cuda_stream_create,
	.stream_destroy = tn_cuda_stream_destroy,
	.copy = tn_cuda_copy,
	.wait = tn_cuda_wait,
	.stream_follow = tn_cuda_stream_follow,
	.word_wait = tn_cuda_word_wait,
	.word_write = tn_cuda_word_write,
	.sum = tn_cuda_sum,
	.allocate = tn_cuda_allocate,
	.release = tn_cuda_release,
	.exports = tn_cuda_exports,
	.import = tn_cuda_import,
	.import_end = tn_cuda_import_end,
};

static const struct tn_device_driver driver = {&ops, &cuda_state};

const struct tn_plugin tn_plugin = {
	.size = sizeof(tn_plugin),
	.abi = TN_PLUGIN_ABI,
	.kind = TN_PLUGIN_DEVICE,
	.name = "cuda",
	.built_for = TN_PLUGIN_BUILT_FOR,
	.table = &driver,
};

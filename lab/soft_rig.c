/* SPDX-License-Identifier: Apache-2.0 */
/* See soft_rig.h. */
#include "lab/soft_rig.h"

#include "base/error.h"

static uint64_t now_of(void *arg)
{
	return ((struct soft_rig *)arg)->now;
}

static const struct tn_nvme_port *port_of(void *arg)
{
	return tn_soft_port(((struct soft_rig *)arg)->soft);
}

static void *get(void *arg, uint64_t bytes, uint64_t *bus)
{
	struct soft_rig *r = arg;

	return r->gets_left-- ? port_of(r)->get(port_of(r)->arg, bytes, bus) : NULL;
}

static void put(void *arg, void *memory, uint64_t bytes)
{
	port_of(arg)->put(port_of(arg)->arg, memory, bytes);
}

static int map(void *arg, void *memory, uint64_t bytes)
{
	return port_of(arg)->map(port_of(arg)->arg, memory, bytes);
}

static void unmap(void *arg, void *memory, uint64_t bytes)
{
	port_of(arg)->unmap(port_of(arg)->arg, memory, bytes);
}

static int translate(void *arg, uintptr_t address, uint64_t length, uint64_t *bus, uint64_t *contiguous)
{
	return port_of(arg)->translate(port_of(arg)->arg, address, length, bus, contiguous);
}

static int cut(void *arg)
{
	struct soft_rig *r = arg;

	r->cuts++;
	return port_of(r)->cut(port_of(r)->arg);
}

void soft_rig_step(void *rig)
{
	struct soft_rig *r = rig;

	r->now += r->step_ns;
	if (!r->dead)
		tn_soft_step(r->soft);
}

void soft_rig_up(struct soft_rig *r, const struct tn_soft_opts *opts, uint64_t step_ns)
{
	struct tn_soft_opts o = *opts;

	*r = (struct soft_rig){.step_ns = step_ns, .gets_left = UINT32_MAX, .clock = {.now_ns = now_of, .wall_ns = now_of, .arg = r}};
	o.clock = &r->clock;
	if (tn_soft_create(&o, &r->soft))
		fail_msg("no software controller: %s", tn_error_last()->text);
	r->port = *tn_soft_port(r->soft);
	r->port.get = get;
	r->port.put = put;
	r->port.map = map;
	r->port.unmap = unmap;
	r->port.translate = translate;
	r->port.cut = cut;
	r->port.pause = soft_rig_step;
	r->port.arg = r;
}

void soft_rig_no_findings(const struct tn_soft *soft)
{
	struct tn_soft_stats stats;

	tn_soft_stats(soft, &stats);
	for (uint32_t i = 0; i < TN_SOFT_FINDINGS; i++)
		if (stats.findings[i])
			fail_msg("the controller found: %s", tn_soft_finding_name((enum tn_soft_finding)i));
}

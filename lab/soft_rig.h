/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The software controller for tests that step it: a port whose every wait is a step of the controller, and the time that goes by. For other
 * tests: that the controller has found nothing.
 */
#ifndef TN_LAB_SOFT_RIG_H
#define TN_LAB_SOFT_RIG_H

#include "lab/nvme_soft.h"
#include "tn_test.h"

/**
 * struct soft_rig
 * @port:      its functions have the rig as their argument
 * @step_ns:   of each step
 * @gets_left: so often the port has memory
 * @cuts:      so often the driver has cut the controller's way to memory
 * @dead:      time passes, and the controller does nothing
 */
struct soft_rig {
	struct tn_soft *soft;
	struct tn_nvme_port port;
	struct tn_clock clock;
	uint64_t now, step_ns;
	uint32_t gets_left, cuts;
	bool dead;
};

void soft_rig_up(struct soft_rig *r, const struct tn_soft_opts *opts, uint64_t step_ns);
/* The port's pause. */
void soft_rig_step(void *rig);
/* No findings, or the test fails. */
void soft_rig_no_findings(const struct tn_soft *soft);

#endif

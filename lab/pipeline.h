/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pipeline of a restore and the split, as the library plans with them, for programs that model whole restores: cli/
 * and bench/ may not include src/.
 */
#ifndef TN_LAB_PIPELINE_H
#define TN_LAB_PIPELINE_H

#include "sched/pipeline.h"

#endif

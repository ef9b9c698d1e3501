/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a trace costs in the model: the hourly price of one GPU with its cache, for as long as the GPU takes. `recompute`
 * is the GPU without a cache.
 */
#include "replay_model.h"

#include <math.h>

#include <tenuto/layout.h>

#define DAYS_PER_YEAR 365.0
#define SECONDS_PER_DAY 86400.0

int model_bill(struct replay_model *m)
{
	struct model_bill *b = &m->bill;
	const struct model_outcome *p = &m->row[TN_STRATEGY_TENUTO].played;
	double block = (double)tn_geometry_block_bytes(&m->geometry);
	double disk_block = block + (double)model_header_bytes(m->geometry.layers);
	double held = (double)(b->capacity_blocks ? b->capacity_blocks : b->written_blocks) * disk_block;

	if (b->drive.gb > 0 && b->drive.gb * 1e9 < held)
		return cli_error(CLI_USAGE, "--drive: gb=%g is too small for the cache, which holds %.1f GB: give at least gb=%.0f, or "
				 "fewer --capacity-blocks", b->drive.gb, held * 1e-9, ceil(held * 1e-9));
	b->dram_bytes = (double)b->host_blocks * block;
	b->ssd_bytes = b->drive.gb > 0 ? b->drive.gb * 1e9 : held;
	b->written_bytes = (double)b->written_blocks * disk_block;
	b->written_s = (p->compute_s + p->bubble_s) / p->busy;
	return CLI_OK;
}

static double hourly(const struct replay_model *m, uint32_t strategy)
{
	const struct model_bill *b = &m->bill;

	return strategy == TN_STRATEGY_RECOMPUTE ? b->prices.gpu : cost_hourly(&b->prices, b->dram_bytes, b->ssd_bytes);
}

double model_dollars(const struct replay_model *m, uint32_t strategy)
{
	const struct model_outcome *p = &m->row[strategy].played;

	return cost_per_mtoken(hourly(m, strategy), p->compute_s + p->bubble_s, (double)m->bill.tokens);
}

double model_dollars_at_slo(const struct replay_model *m, uint32_t strategy)
{
	double per_s = m->row[strategy].max_factor * m->trace_per_s;

	return per_s > 0 ? cost_per_mtoken(hourly(m, strategy), (double)m->n / per_s, (double)m->bill.tokens) : 0;
}

static double writes_per_day(const struct model_bill *b)
{
	return cost_drive_writes_per_day(&b->drive, b->ssd_bytes, b->written_bytes, b->written_s);
}

json_t *model_bill_json(const struct replay_model *m)
{
	const struct model_bill *b = &m->bill;
	double per_day = writes_per_day(b), years = cost_drive_years(&b->drive, per_day);

	return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:o}", "gpu_per_hour", b->prices.gpu,
			 "dram_per_gb_hour", b->prices.dram_gb, "ssd_per_gb_hour", b->prices.ssd_gb, "dram_gb", b->dram_bytes * 1e-9,
			 "ssd_gb", b->ssd_bytes * 1e-9, "hourly_without_cache", hourly(m, TN_STRATEGY_RECOMPUTE), "hourly_with_cache",
			 hourly(m, TN_STRATEGY_TENUTO), "prompt_tokens", (json_int_t)b->tokens, "written_gb", b->written_bytes * 1e-9,
			 "written_in_s", b->written_s, "rated_drive_writes_per_day", b->drive.writes_per_day, "rated_years",
			 b->drive.years, "write_amplification", b->drive.amplification, "drive_writes_per_day", per_day,
			 "drive_life_years", isfinite(years) ? json_real(years) : json_null());
}

void model_about_cost(const struct replay_model *m, char *buf)
{
	const struct model_bill *b = &m->bill;
	double without = model_dollars(m, TN_STRATEGY_RECOMPUTE), with = model_dollars(m, TN_STRATEGY_TENUTO);
	double slo_without = model_dollars_at_slo(m, TN_STRATEGY_RECOMPUTE), slo_with = model_dollars_at_slo(m, TN_STRATEGY_TENUTO);
	char slo[128] = "", more[32] = "", gpu[COST_TEXT], dram[COST_TEXT], ssd[COST_TEXT];

	if (slo_without > 0 && slo_with > 0)
		snprintf(slo, sizeof(slo), " At the largest rate within %g ms: $%.4f and $%.4f.", m->slo_ms, slo_without, slo_with);
	if (without > 0)
		snprintf(more, sizeof(more), " (%+.0f %%)", 100 * (with / without - 1));
	snprintf(buf, MODEL_PARAGRAPH,
		 "Cost of a million prompt tokens ($/Mtok), with the GPU always busy: $%.4f without a cache, $%.4f with it%s.%s "
		 "Prices per hour: $%s per GPU, $%s per GB of DRAM, $%s per GB of SSD; the cache has %.1f GB of DRAM and %.1f GB of SSD, "
		 "$%.3f an hour.", without, with, more, slo, cost_text(gpu, b->prices.gpu),
		 cost_text(dram, b->prices.dram_gb), cost_text(ssd, b->prices.ssd_gb), b->dram_bytes * 1e-9, b->ssd_bytes * 1e-9,
		 hourly(m, TN_STRATEGY_TENUTO) - b->prices.gpu);
}

void model_about_drive(const struct replay_model *m, char *buf)
{
	const struct model_bill *b = &m->bill;
	double per_day = writes_per_day(b), years = cost_drive_years(&b->drive, per_day);
	char life[48], in[32];
	const char *caveat = "";

	if (!isfinite(years)) {
		snprintf(buf, MODEL_PARAGRAPH, "Life of the SSD: nothing is written.");
		return;
	}
	if (years * DAYS_PER_YEAR < 2)
		cli_duration(life, years * DAYS_PER_YEAR * SECONDS_PER_DAY);
	else if (years < 2)
		snprintf(life, sizeof(life), "%.3g days", years * DAYS_PER_YEAR);
	else
		snprintf(life, sizeof(life), "%.3g years", years);
	if (b->written_bytes <= b->ssd_bytes)
		caveat = b->drive.gb > 0 ? " The trace writes no more than the SSD holds, so this says little: give a longer trace." :
			" The trace writes no more than the SSD holds, so this says little: give --drive gb=N and a longer trace.";
	snprintf(buf, MODEL_PARAGRAPH,
		 "Life of the SSD: %.1f GB are written in %s at this rate, %.3g drive writes a day of %.1f GB. The rated writes (%g a day for %g years, "
		 "write amplification %g) last %s.%s", b->written_bytes * 1e-9, cli_duration(in, b->written_s), per_day,
		 b->ssd_bytes * 1e-9, b->drive.writes_per_day, b->drive.years, b->drive.amplification, life,
		 caveat);
}

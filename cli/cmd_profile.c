/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tenuto profile`: a slack table, from an engine's own timings, from the analytic model, or from a kernel that is
 * run here. The library reads no files, so this program reads them.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <tenuto/slack.h>

#include "cli.h"
#include "lab/models.h"
#include "profile.h"

#define SYNTHETIC_LAYERS 32u

struct args {
	const char *from, *model, *gpu, *engine, *out;
	const char *name, *dtype, *inputs, *prefixes, *repeat; /* of MODEL */
	double efficiency, read_gbps;
	bool synthetic, json;
	uint64_t layers;
};

static const struct cli_opt options[] = {
	{"from", "FILE", NULL, "an engine's timings: CSV, JSON lines or a JSON array with input, prefix, layer, ns, and if known sms, iocbs", CLI_STRING,
	 offsetof(struct args, from), 0, 0},
	{"synthetic", NULL, NULL, "time a spin kernel on this machine", CLI_FLAG, offsetof(struct args, synthetic), 0, 0},
	{"model", "NAME", NULL, "the model; without --from and --synthetic its analytic table is made", CLI_STRING,
	 offsetof(struct args, model), 0, 0},
	{"gpu", "NAME", NULL, "what computes", CLI_STRING, offsetof(struct args, gpu), 0, 0},
	{"engine", "NAME", NULL, "whose timings; with MODEL: hf (transformers) or vllm", CLI_STRING, offsetof(struct args, engine), 0, 0},
	{"efficiency", "X", "0.5", "share of the GPU's FLOP/s that is reached (analytic)", CLI_RATE,
	 offsetof(struct args, efficiency), 0, 0},
	{"read-gbps", "GB/S", "no bound", "what the devices read: bounds a load's IOCBs to those that fit into a layer's time, and two (analytic)",
	 CLI_RATE, offsetof(struct args, read_gbps), 0, 0},
	{"layers", "N", "32", "layers of the synthetic model", CLI_COUNT, offsetof(struct args, layers), 1, TN_LAYERS_MAX},
	{"name", "NAME", "MODEL", "the name that the engine uses for the model; a directory's is its absolute path", CLI_STRING, offsetof(struct args, name), 0, 0},
	{"dtype", "NAME", "auto", "of MODEL, as it is given to the engine: auto, float32, float16 or bfloat16", CLI_STRING, offsetof(struct args, dtype), 0, 0},
	{"inputs", "N,N,...", "1,64,256,1024,4096", "input tokens of MODEL's runs, by default as far as the model goes", CLI_STRING, offsetof(struct args, inputs), 0, 0},
	{"prefixes", "N,N,...", "0,1024,4096,16384", "prefix tokens of MODEL's runs, by default as far as the model goes", CLI_STRING, offsetof(struct args, prefixes), 0, 0},
	{"repeat", "N", "5", "timings of MODEL per pair of lengths", CLI_STRING, offsetof(struct args, repeat), 0, 0},
	{"out", "FILE", NULL, "write the table there", CLI_STRING, offsetof(struct args, out), 0, 0},
	{"json", NULL, NULL, "print JSON", CLI_FLAG, offsetof(struct args, json), 0, 0},
	{0},
};

static char about[2048];

static const struct cli_verb verb = {.name = "profile", .operands = "[MODEL]", .about = about, .opts = options, .max_operands = 1};

static void describe_verb(void)
{
	size_t n = (size_t)snprintf(about, sizeof(about),
				    "Makes a slack table: how long an engine computes on each layer, by input and prefix length, and so how "
				    "much I/O hides behind it. Give --from, or --synthetic, or --model and --gpu (docs/model.md), or --engine and MODEL: a "
				    "name, a directory or a config.json, which Python times in its engine (docs/tables.md).\n"
				    "Models:");

	for (size_t i = 0; tn_model_at(i); i++)
		n += (size_t)snprintf(about + n, sizeof(about) - n, " %s", tn_model_at(i));
	n += (size_t)snprintf(about + n, sizeof(about) - n, "\nGPUs:  ");
	for (size_t i = 0; tn_gpu_at(i); i++)
		n += (size_t)snprintf(about + n, sizeof(about) - n, " %s", tn_gpu_at(i));
}

/* ---- from timings -------------------------------------------------------------------------------- */

static int by_lengths(const void *a, const void *b)
{
	const struct profile_row *x = a, *y = b;

	if (x->layer != y->layer)
		return x->layer < y->layer ? -1 : 1;
	if (x->prefix != y->prefix)
		return x->prefix < y->prefix ? -1 : 1;
	if (x->input != y->input)
		return x->input < y->input ? -1 : 1;
	return (x->ns > y->ns) - (x->ns < y->ns);
}

/* The index of a length in a rising list, to which the length is added if it is missing; -1 if there are too many. */
static int length_index(uint64_t *lengths, uint32_t *n, uint64_t value)
{
	uint32_t at = 0;

	while (at < *n && lengths[at] < value)
		at++;
	if (at < *n && lengths[at] == value)
		return (int)at;
	if (*n == TN_SLACK_LENGTHS_MAX)
		return -1;
	memmove(lengths + at + 1, lengths + at, (*n - at) * sizeof(*lengths));
	lengths[at] = value;
	++*n;
	return (int)at;
}

struct grid {
	uint64_t inputs[TN_SLACK_LENGTHS_MAX], prefixes[TN_SLACK_LENGTHS_MAX];
	struct tn_slack_desc desc;
};

static int make_grid(const char *name, const struct profile_rows *rows, struct grid *g)
{
	g->desc.inputs = g->inputs;
	g->desc.prefixes = g->prefixes;
	for (size_t i = 0; i < rows->n; i++) {
		if (length_index(g->inputs, &g->desc.ninputs, rows->row[i].input) < 0 ||
		    length_index(g->prefixes, &g->desc.nprefixes, rows->row[i].prefix) < 0)
			return cli_error(CLI_USAGE, "%s: more than %u different lengths", name, TN_SLACK_LENGTHS_MAX);
		if (rows->row[i].layer >= g->desc.layers)
			g->desc.layers = rows->row[i].layer + 1;
	}
	return CLI_GO;
}

/* The median of the repeated timings of a cell: neither a preemption nor a lucky run changes it. Its bounds go with it. */
static int fill(struct tn_slack *t, struct profile_rows *rows, struct grid *g)
{
	size_t from = 0;

	qsort(rows->row, rows->n, sizeof(*rows->row), by_lengths);
	while (from < rows->n) {
		const struct profile_row *r = &rows->row[from];
		struct tn_slack_cell cell = {.size = sizeof(cell)};
		size_t end = from + 1;
		int rc;

		while (end < rows->n && rows->row[end].layer == r->layer && rows->row[end].prefix == r->prefix &&
		       rows->row[end].input == r->input)
			end++;
		r = &rows->row[from + (end - from - 1) / 2];
		cell.window_ns = r->ns;
		cell.sm_budget = r->sms;
		cell.most_iocbs = r->iocbs;
		rc = tn_slack_set_cell(t, (uint32_t)length_index(g->inputs, &g->desc.ninputs, r->input),
				       (uint32_t)length_index(g->prefixes, &g->desc.nprefixes, r->prefix),
				       g->desc.per_layer ? r->layer : TN_SLACK_ALL_LAYERS, &cell);
		if (rc)
			return rc;
		from = end;
	}
	return tn_slack_check(t);
}

static int from_rows(const struct args *a, const char *name, struct profile_rows *rows, struct grid *g,
		     struct tn_slack **out)
{
	struct tn_slack *t;
	int rc;

	if (a->model)
		g->desc.model = a->model;
	if (a->gpu)
		g->desc.gpu = a->gpu;
	if (a->engine)
		g->desc.engine = a->engine;
	rc = make_grid(name, rows, g);
	if (rc != CLI_GO)
		return rc;
	g->desc.per_layer = g->desc.how == TN_SLACK_PROFILED && g->desc.layers > 1;
	rc = tn_slack_create(&g->desc, &t);
	if (rc)
		return cli_fail(rc, "%s", name);
	rc = fill(t, rows, g);
	if (rc) {
		tn_slack_destroy(t);
		return rc == -ENODATA ? cli_error(CLI_USAGE, "%s: %s: every pair of lengths needs a timing of every layer",
						  name, tn_error_last()->text)
				      : cli_fail(rc, "%s", name);
	}
	*out = t;
	return CLI_GO;
}

static int make_table(const struct args *a, const char *when, struct tn_slack **out)
{
	struct profile_rows rows = {0};
	struct grid g = {0};
	char error[512];
	int rc;

	tn_slack_desc_init(&g.desc);
	g.desc.when = when;
	if (!a->from && !a->synthetic) {
		rc = tn_slack_analytic(a->model, a->gpu, a->efficiency > 0 ? a->efficiency : TN_SLACK_EFFICIENCY, a->read_gbps * 1e9, when, out);
		return rc ? cli_error(CLI_USAGE, "%s", tn_error_last()->text) : CLI_GO;
	}
	if (a->from) {
		g.desc.how = TN_SLACK_PROFILED;
		rc = profile_rows_read(a->from, &rows, error, sizeof(error));
		rc = rc ? cli_error(cli_exit_of(rc), "%s", error) : CLI_GO;
	} else {
		g.desc.how = TN_SLACK_SYNTHETIC;
		g.desc.engine = "spin";
		g.desc.layers = a->layers ? (uint32_t)a->layers : SYNTHETIC_LAYERS;
		rc = profile_spin(&rows) ? cli_error(CLI_ENVIRONMENT, "out of memory") : CLI_GO;
	}
	if (rc == CLI_GO)
		rc = from_rows(a, a->from ? a->from : "synthetic", &rows, &g, out);
	profile_rows_free(&rows);
	return rc;
}

/* ---- output -------------------------------------------------------------------------------------- */

static int save(const struct tn_slack *t, const char *name)
{
	long n = tn_slack_print(t, NULL, 0);
	char *text = n > 0 ? malloc((size_t)n + 1) : NULL;
	FILE *file;
	bool good;

	if (!text)
		return n > 0 ? cli_error(CLI_ENVIRONMENT, "out of memory") : cli_fail((int)n, "%s", name);
	tn_slack_print(t, text, (size_t)n + 1);
	file = fopen(name, "we");
	good = file && fwrite(text, 1, (size_t)n, file) == (size_t)n;
	if (file && fclose(file))
		good = false;
	free(text);
	return good ? CLI_OK : cli_error(cli_exit_of(-errno), "%s: cannot be written: %s", name, strerror(errno));
}

static uint64_t all_layers(const struct tn_slack *t, const struct tn_slack_desc *d, uint32_t i, uint32_t p)
{
	uint64_t sum = 0;

	for (uint32_t l = 0; l < d->layers; l++)
		sum += tn_slack_window(t, d->inputs[i], d->prefixes[p], l);
	return sum;
}

/* Of all layers. */
static struct tn_slack_cell least_bounds(const struct tn_slack *t, const struct tn_slack_desc *d, uint32_t i, uint32_t p)
{
	struct tn_slack_cell least, cell;

	tn_slack_at(t, d->inputs[i], d->prefixes[p], 0, &least);
	for (uint32_t l = 1; l < d->layers; l++) {
		tn_slack_at(t, d->inputs[i], d->prefixes[p], l, &cell);
		least.sm_budget = cell.sm_budget < least.sm_budget ? cell.sm_budget : least.sm_budget;
		least.most_iocbs = cell.most_iocbs < least.most_iocbs ? cell.most_iocbs : least.most_iocbs;
	}
	return least;
}

static int print_json(const struct tn_slack *t, const struct tn_slack_desc *d)
{
	json_t *rows = json_array();

	for (uint32_t p = 0; p < d->nprefixes; p++)
		for (uint32_t i = 0; i < d->ninputs; i++) {
			uint64_t sum = all_layers(t, d, i, p);
			struct tn_slack_cell least = least_bounds(t, d, i, p);

			json_array_append_new(rows, json_pack("{s:I, s:I, s:I, s:I, s:i, s:i}", "input", (json_int_t)d->inputs[i],
							      "prefix", (json_int_t)d->prefixes[p], "layer_ns",
							      (json_int_t)(sum / d->layers), "total_ns", (json_int_t)sum,
							      "sm_budget", (int)least.sm_budget, "most_iocbs",
							      (int)least.most_iocbs));
		}
	return cli_json(json_pack("{s:s, s:s, s:s, s:s, s:s, s:i, s:b, s:o}", "model", d->model, "gpu", d->gpu, "engine",
				  d->engine, "when", d->when, "how", tn_slack_how_name(d->how), "layers", (int)d->layers,
				  "per_layer", (int)d->per_layer, "rows", rows));
}

#define SHOWN 10u /* columns: the lengths are thinned out to fit */

static int print_table(const struct tn_slack *t, const struct tn_slack_desc *d)
{
	uint32_t each = (d->nprefixes + SHOWN - 1) / SHOWN;
	static const bool left[CLI_COLUMNS_MAX];
	struct cli_table table;
	char text[32];

	_Static_assert(SHOWN + 1 <= CLI_COLUMNS_MAX, "a column for each length that is shown, one for the input");
	printf("%s on %s (%s), %s, %s: %u layer%s%s, %u x %u lengths\n\nmean time of a layer, by input (down) and prefix tokens\n\n",
	       d->model, d->gpu, d->engine, tn_slack_how_name(d->how), d->when, d->layers, d->layers == 1 ? "" : "s",
	       d->per_layer ? ", each with its own cells" : "", d->ninputs, d->nprefixes);
	cli_table_init(&table, 1 + (d->nprefixes + each - 1) / each, left);
	cli_table_cell(&table, "input");
	for (uint32_t p = 0; p < d->nprefixes; p += each)
		cli_table_cell(&table, "%s", cli_number(text, d->prefixes[p]));
	for (uint32_t i = 0; i < d->ninputs; i++) {
		cli_table_cell(&table, "%s", cli_number(text, d->inputs[i]));
		for (uint32_t p = 0; p < d->nprefixes; p += each)
			cli_table_cell(&table, "%.3f ms", (double)all_layers(t, d, i, p) / d->layers / 1e6);
	}
	cli_table_print(&table, stdout, true);
	return cli_finish(CLI_OK);
}

/* MODEL, timed in its engine. */
static int in_engine(const struct args *a, const char *model)
{
	const struct profile_engine e = {a->engine, a->name, a->dtype, a->inputs, a->prefixes, a->repeat, a->out};

	if (a->from || a->synthetic || a->model || a->gpu || a->efficiency > 0 || a->read_gbps > 0 || a->layers || a->json)
		return cli_error(CLI_USAGE, "%s: with MODEL only --engine, --name, --dtype, --inputs, --prefixes, --repeat and --out are taken", model);
	if (!a->engine || (strcmp(a->engine, "hf") != 0 && strcmp(a->engine, "vllm") != 0))
		return cli_error(CLI_USAGE, "%s: give --engine hf or --engine vllm: the engine that runs the model", model);
	return profile_engine(model, &e);
}

static int check_args(const struct args *a)
{
	if (a->name || a->dtype || a->inputs || a->prefixes || a->repeat)
		return cli_error(CLI_USAGE, "--name, --dtype, --inputs, --prefixes and --repeat are of a MODEL that is timed in its engine: give it, and --engine");
	if (a->from && a->synthetic)
		return cli_error(CLI_USAGE, "--from and --synthetic exclude each other");
	if (!a->from && !a->synthetic && (!a->model || !a->gpu))
		return cli_error(CLI_USAGE, "give --from FILE, or --synthetic, or --model NAME and --gpu NAME, or --engine NAME and MODEL\n"
					    "try 'tenuto profile --help'");
	if (!(a->efficiency <= 1))
		return cli_error(CLI_USAGE, "--efficiency: at most 1");
	if (a->efficiency > 0 && (a->from || a->synthetic))
		return cli_error(CLI_USAGE, "--efficiency is of the analytic model: what was timed is taken as it is");
	if (a->read_gbps > 0 && (a->from || a->synthetic))
		return cli_error(CLI_USAGE, "--read-gbps is of the analytic model: timings say how many IOCBs fit (column iocbs)");
	if (a->layers && !a->synthetic)
		return cli_error(CLI_USAGE, "--layers is of --synthetic: %s",
				 a->from ? "the timings name their layers" : "the model has its own");
	if (a->engine && !a->from && !a->synthetic)
		return cli_error(CLI_USAGE, "--engine is of timings, with --from or --synthetic");
	return CLI_GO;
}

int cmd_profile(int argc, char **argv)
{
	struct args a = {0};
	time_t now = time(NULL);
	struct tn_slack_desc d;
	struct tn_slack *t;
	char when[32];
	struct tm tm;
	int n, rc;

	describe_verb();
	rc = cli_parse(&verb, argc, argv, &a, &n);
	if (rc == CLI_GO)
		rc = n ? in_engine(&a, argv[1]) : check_args(&a);
	if (rc != CLI_GO)
		return rc;
	strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &tm));
	rc = make_table(&a, when, &t);
	if (rc != CLI_GO)
		return rc;
	tn_slack_describe(t, &d);
	rc = a.out ? save(t, a.out) : CLI_OK;
	if (rc == CLI_OK)
		rc = a.json ? print_json(t, &d) : print_table(t, &d);
	tn_slack_destroy(t);
	return rc;
}

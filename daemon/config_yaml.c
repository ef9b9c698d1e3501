/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings from a YAML file: one mapping of names to values.
 *
 * By libyaml's document, which knows the line of each value. (libcyaml, which is made of it, tells lines of what it cannot convert itself, but not of
 * a size with a wrong unit or a name that is not among the choices.)
 */
#include "config.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>

#define FILE_BYTES_MAX (1u << 20)

struct reader {
	struct config *c;
	const char *path;
	char *why;
};

static int wrong(const struct reader *r, size_t line, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static int wrong(const struct reader *r, size_t line, const char *fmt, ...)
{
	int at = snprintf(r->why, CONFIG_WHY, "%.200s:%zu: ", r->path, line);
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(r->why + at, CONFIG_WHY - (size_t)at, fmt, ap);
	va_end(ap);
	return -EINVAL;
}

static size_t line_of(const yaml_node_t *node)
{
	return node->start_mark.line + 1;
}

/* The text of a scalar; NULL: it is none, or has a zero byte in it. */
static const char *text_of(const yaml_node_t *node)
{
	const char *text = node->type == YAML_SCALAR_NODE ? (const char *)node->data.scalar.value : NULL;

	return text && strlen(text) == node->data.scalar.length ? text : NULL;
}

static int unknown_setting(const struct reader *r, const yaml_node_t *key, const char *name)
{
	const char *names[CONFIG_SETTINGS_MAX], *near;
	size_t n = 0;

	for (const struct config_setting *s = config_settings; s->name; s++)
		names[n++] = s->name;
	near = cli_nearest(name, names, n);
	return wrong(r, line_of(key), "there is no setting '%.60s'%s%s; tenutod --print-config prints all", name,
		     near ? ": did you mean " : "", near ? near : "");
}

static int read_dirs(const struct reader *r, const struct config_setting *s, const yaml_node_t *list)
{
	char why[CONFIG_WHY];

	for (const yaml_node_item_t *i = list->data.sequence.items.start; i < list->data.sequence.items.top; i++) {
		const yaml_node_t *node = yaml_document_get_node(&r->c->document, *i);
		const char *text = text_of(node);

		if (!text)
			return wrong(r, line_of(node), "%s: this is no path: write one per line, such as - /nvme0/tenuto", s->name);
		if (config_add_dir(r->c, s, text, why))
			return wrong(r, line_of(node), "%s: %.500s", s->name, why);
	}
	return 0;
}

static int read_tenants(const struct reader *r, const yaml_node_t *list, struct cli_strings *tenants)
{
	tenants->n = 0;
	if (list->type != YAML_SEQUENCE_NODE)
		return wrong(r, line_of(list), "tenants: write a list, such as [team-a, team-b]");
	for (const yaml_node_item_t *i = list->data.sequence.items.start; i < list->data.sequence.items.top; i++) {
		const yaml_node_t *node = yaml_document_get_node(&r->c->document, *i);
		const char *text = text_of(node);

		if (!text)
			return wrong(r, line_of(node), "tenants: this is no name: write a list, such as [team-a, team-b]");
		if (tenants->n == CLI_STRINGS_MAX)
			return wrong(r, line_of(node), "tenants: '%.60s' is one too many: write at most %d, and the others in a rule of their own", text,
				     CLI_STRINGS_MAX);
		tenants->item[tenants->n++] = text;
	}
	return tenants->n ? 0 : wrong(r, line_of(list), "tenants: an empty list: name some, or leave it out for all");
}

/* line: of each setting, where the rule has it; 0: not yet. */
static int read_client_setting(const struct reader *r, const yaml_node_t *key, const yaml_node_t *value, struct client *client, size_t *line)
{
	const char *name = text_of(key), *text = text_of(value), *names[CONFIG_SETTINGS_MAX], *near;
	const struct config_setting *s = client_settings;
	char why[CONFIG_WHY];
	size_t n = 0;

	for (; s->name && !(name && strcmp(s->name, name) == 0); s++)
		names[n++] = s->name;
	if (!s->name) {
		near = name ? cli_nearest(name, names, n) : NULL;
		return wrong(r, line_of(key), "clients: there is no '%.60s' of a client%s%s; tenutod --print-config says what there is",
			     name ? name : "", near ? ": did you mean " : "", near ? near : "");
	}
	line += s - client_settings;
	if (*line)
		return wrong(r, line_of(key), "clients: %s is given in line %zu, too, for the same client: leave one of them out", name, *line);
	*line = line_of(key);
	if (s->kind == CONFIG_DIRS)
		return read_tenants(r, value, &client->tenants);
	if (!text)
		return wrong(r, line_of(value), "%s: a list or a mapping, or text with a zero byte: write one value", name);
	return config_value((char *)client + s->offset, s, text, why) ? wrong(r, line_of(value), "%s: %.500s", name, why) : 0;
}

static int read_client(const struct reader *r, const yaml_node_t *node, struct client *client)
{
	size_t line[CONFIG_SETTINGS_MAX] = {0};
	char why[CONFIG_WHY];
	int rc = 0;

	client_init(client);
	if (node->type != YAML_MAPPING_NODE)
		return wrong(r, line_of(node), "clients: this is no rule: write one such as - {uid: 1000}");
	for (const yaml_node_pair_t *p = node->data.mapping.pairs.start; p < node->data.mapping.pairs.top && rc == 0; p++)
		rc = read_client_setting(r, yaml_document_get_node(&r->c->document, p->key),
					 yaml_document_get_node(&r->c->document, p->value), client, line);
	if (rc == 0 && client_check(client, why, sizeof(why)))
		rc = wrong(r, line_of(node), "clients: %.500s", why);
	return rc;
}

static int read_clients(const struct reader *r, const yaml_node_t *list)
{
	struct clients *clients = &r->c->clients;
	int rc = 0;

	clients->n = 0;
	if (list->type != YAML_SEQUENCE_NODE)
		return wrong(r, line_of(list), "clients: write a list of rules, such as - {uid: 1000}");
	for (const yaml_node_item_t *i = list->data.sequence.items.start; i < list->data.sequence.items.top && rc == 0; i++) {
		const yaml_node_t *node = yaml_document_get_node(&r->c->document, *i);

		if (clients->n == CLIENTS_MAX)
			return wrong(r, line_of(node), "clients: one rule too many: write at most %d", CLIENTS_MAX);
		rc = read_client(r, node, &clients->item[clients->n++]);
	}
	return rc;
}

static int read_specs(const struct reader *r, const struct config_setting *s, const yaml_node_t *list)
{
	char *specs = (char *)r->c + s->offset, why[CONFIG_WHY];

	*specs = 0;
	for (const yaml_node_item_t *i = list->data.sequence.items.start; i < list->data.sequence.items.top; i++) {
		const yaml_node_t *node = yaml_document_get_node(&r->c->document, *i);
		const char *text = text_of(node);

		if (!text || !*text)
			return wrong(r, line_of(node), "%s: no text: write one such as s3,bucket=NAME", s->name);
		if (config_add_spec(specs, text, why))
			return wrong(r, line_of(node), "%s: %.500s", s->name, why);
	}
	return *specs ? 0 : wrong(r, line_of(list), "%s: an empty list: name some, or write off", s->name);
}

static int read_serve(const struct reader *r, const yaml_node_t *mapping)
{
	char why[CONFIG_WHY];

	if (mapping->type != YAML_MAPPING_NODE)
		return wrong(r, line_of(mapping), "serve: write a mapping, such as {tcp: 127.0.0.1:9471, secret_file: /etc/tenuto/peers.secret}");
	for (const yaml_node_pair_t *p = mapping->data.mapping.pairs.start; p < mapping->data.mapping.pairs.top; p++) {
		const yaml_node_t *key = yaml_document_get_node(&r->c->document, p->key), *value = yaml_document_get_node(&r->c->document, p->value);
		const char *name = text_of(key), *text = text_of(value);
		const struct config_setting *s = serve_settings;

		while (s->name && !(name && strcmp(s->name, name) == 0))
			s++;
		if (!s->name)
			return wrong(r, line_of(key), "serve: there is no '%.60s' of it: it has tcp and secret_file", name ? name : "");
		if (!text)
			return wrong(r, line_of(value), "serve: %s: write one value", s->name);
		if (config_value((char *)&r->c->serve + s->offset, s, text, why))
			return wrong(r, line_of(value), "serve: %s: %.500s", s->name, why);
	}
	return 0;
}

static int read_setting(const struct reader *r, const yaml_node_t *key, const yaml_node_t *value)
{
	const char *name = text_of(key), *text = text_of(value);
	const struct config_setting *s = config_settings;
	char why[CONFIG_WHY];
	uint32_t *line;

	if (!name)
		return wrong(r, line_of(key), "this is no name of a setting: write NAME: VALUE");
	while (s->name && strcmp(s->name, name) != 0)
		s++;
	if (!s->name)
		return unknown_setting(r, key, name);
	line = &r->c->line[s - config_settings];
	if (*line)
		return wrong(r, line_of(key), "%s is given in line %u, too: leave one of them out", name, *line);
	*line = (uint32_t)line_of(key);
	if (s->kind == CONFIG_CLIENTS)
		return read_clients(r, value);
	if (s->kind == CONFIG_SERVE)
		return read_serve(r, value);
	if (s->kind == CONFIG_DIRS) {
		r->c->dirs.n = 0;
		if (value->type == YAML_SEQUENCE_NODE)
			return read_dirs(r, s, value);
	}
	if (s->kind == CONFIG_SPECS && value->type == YAML_SEQUENCE_NODE)
		return read_specs(r, s, value);
	if (!text)
		return wrong(r, line_of(value), "%s: a list or a mapping, or text with a zero byte: write one value", name);
	return config_set(r->c, s, text, why) ? wrong(r, line_of(value), "%s: %.500s", name, why) : 0;
}

static int read_document(const struct reader *r)
{
	const yaml_node_t *root = yaml_document_get_root_node(&r->c->document);

	if (!root)
		return 0; /* nothing but comments */
	if (root->type != YAML_MAPPING_NODE)
		return wrong(r, line_of(root), "the file is no mapping: write lines of NAME: VALUE");
	for (const yaml_node_pair_t *p = root->data.mapping.pairs.start; p < root->data.mapping.pairs.top; p++) {
		int rc = read_setting(r, yaml_document_get_node(&r->c->document, p->key),
				      yaml_document_get_node(&r->c->document, p->value));

		if (rc)
			return rc;
	}
	return 0;
}

static int no_memory(const struct reader *r)
{
	snprintf(r->why, CONFIG_WHY, "%.200s: no memory to read it", r->path);
	return -ENOMEM;
}

static int no_yaml(const struct reader *r, const yaml_parser_t *parser)
{
	size_t line = parser->problem_mark.line + 1;

	if (parser->error == YAML_MEMORY_ERROR)
		return no_memory(r);
	if (parser->context)
		return wrong(r, line, "this is no YAML: %s %s; write lines of NAME: VALUE", parser->context, parser->problem);
	return wrong(r, line, "this is no YAML: %s; write lines of NAME: VALUE", parser->problem);
}

/* The first document, which must be the only one. */
static int parse(const struct reader *r, yaml_parser_t *parser)
{
	yaml_document_t second;
	int rc;

	if (!yaml_parser_load(parser, &r->c->document))
		return no_yaml(r, parser);
	r->c->has_document = true;
	rc = read_document(r);
	if (rc || !yaml_document_get_root_node(&r->c->document))
		return rc;
	if (!yaml_parser_load(parser, &second))
		return no_yaml(r, parser);
	if (yaml_document_get_root_node(&second))
		rc = wrong(r, second.start_mark.line + 1, "a second document begins here: write all settings into one");
	yaml_document_delete(&second);
	return rc;
}

/* A file is read whole first: a directory, or a file that is not one of settings, is told as such. */
static int read_file(const struct reader *r, unsigned char *text, size_t *bytes)
{
	FILE *f = fopen(r->path, "re");
	int rc = 0;

	if (f)
		*bytes = fread(text, 1, FILE_BYTES_MAX, f);
	if (!f || ferror(f)) {
		rc = -errno;
		snprintf(r->why, CONFIG_WHY, "%.200s: %s", r->path, strerror(errno));
	} else if (*bytes == FILE_BYTES_MAX) {
		rc = -EINVAL;
		snprintf(r->why, CONFIG_WHY, "%.200s: has %u bytes or more: this is no configuration", r->path, FILE_BYTES_MAX);
	}
	if (f)
		fclose(f);
	return rc;
}

int config_parse(struct config *c, const char *path, const void *text, size_t bytes, char *why)
{
	struct reader r = {c, path, why};
	yaml_parser_t parser;
	int rc;

	if (!yaml_parser_initialize(&parser))
		return no_memory(&r);
	yaml_parser_set_input_string(&parser, text, bytes);
	rc = parse(&r, &parser);
	yaml_parser_delete(&parser);
	return rc;
}

int config_load(struct config *c, const char *path, char *why)
{
	struct reader r = {c, path, why};
	unsigned char *text = malloc(FILE_BYTES_MAX);
	size_t bytes = 0;
	int rc = text ? read_file(&r, text, &bytes) : no_memory(&r);

	if (rc == 0)
		rc = config_parse(c, path, text, bytes, why);
	free(text);
	return rc;
}

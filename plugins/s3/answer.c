/* SPDX-License-Identifier: Apache-2.0 */
#include "answer.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "client.h"
#include "store.h"

bool s3_element(const char *xml, const char *name, char *out, size_t bytes)
{
	char open[40];
	const char *from, *end;

	snprintf(open, sizeof(open), "<%s>", name);
	from = strstr(xml, open);
	if (!from)
		return false;
	from += strlen(open);
	end = strchr(from, '<');
	if (!end || end == from || (size_t)(end - from) >= bytes)
		return false;
	memcpy(out, from, (size_t)(end - from));
	out[end - from] = 0;
	return true;
}

/* ---- what to do -------------------------------------------------------------------------------------------------------- */

static const char *advice_of_code(const char *code)
{
	static const struct {
		const char *code, *advice;
	} known[] = {
		{"AuthorizationHeaderMalformed", "check region"},
		{"ExpiredToken", "get a new session_token"},
		{"InvalidAccessKeyId", "check access_key"},
		{"InvalidToken", "check session_token"},
		{"NoSuchBucket", "create the bucket, or check bucket"},
		{"PermanentRedirect", "check region and endpoint"},
		{"RequestTimeTooSkewed", "set the clock of this machine"},
		{"SignatureDoesNotMatch", "check secret_key"},
	};

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (!strcmp(known[i].code, code))
			return known[i].advice;
	return NULL;
}

static const char *advice_of_status(int status)
{
	static const struct {
		int first, last;
		const char *advice;
	} known[] = {
		{200, 299, "the answer is not what was asked for: the object may be shorter than the range, or endpoint is no S3 store"},
		{401, 401, "check access_key and secret_key"},
		{403, 403, "check access_key and secret_key, and what the key may do with the bucket"},
		{404, 404, "check the key and bucket: no such object was written"},
		{412, 412, "there is such an object: take another key, or leave if_absent out"},
		{416, 416, "the object has fewer bytes: a query says how many"},
		{429, 429, "the store is asked too often: use fewer connections, or a later deadline"},
		{503, 503, "the store is overloaded or starts: use fewer connections, or a later deadline"},
		{507, 507, "the store is full: free some of it"},
		{500, 599, "the store fails: its log says why"},
		{0, 599, "check endpoint, region and bucket"},
	};
	size_t i = 0;

	while (i < sizeof(known) / sizeof(known[0]) - 1 && (status < known[i].first || status > known[i].last))
		i++;
	return known[i].advice;
}

static const char *advice_of_transport(int code)
{
	switch (code) {
	case -ECONNREFUSED:
	case -EHOSTUNREACH:
		return "check endpoint, and that the store runs";
	case -EACCES:
		return "check ca_file, and that the certificate is endpoint's";
	default:
		return "the connection broke or stalled: the store's log may say why";
	}
}

/* ---- in words ---------------------------------------------------------------------------------------------------------- */

/* What came from outside goes into logs. */
static void make_plain(char *text)
{
	for (; *text; text++)
		if (*text < ' ' || *text > '~')
			*text = '?';
}

static void explain(const struct s3_store *store, const char *key, const struct http_request *r, int code, const char *why, char *out, size_t bytes)
{
	char name[48] = "", message[96] = "";
	const char *advice;
	int n = snprintf(out, bytes, "object %.100s of %.100s%s: ", key, store->base, store->bucket_path);

	if (n < 0 || (size_t)n >= bytes)
		return;
	make_plain(out);
	if (why) {
		snprintf(message, sizeof(message), "%s", why);
		make_plain(message);
		snprintf(out + n, bytes - (size_t)n, "%s; %s", message, advice_of_transport(code));
		return;
	}
	s3_element(r->answer, "Code", name, sizeof(name));
	s3_element(r->answer, "Message", message, sizeof(message));
	make_plain(name);
	make_plain(message);
	advice = advice_of_code(name);
	snprintf(out + n, bytes - (size_t)n, "HTTP %d%s%s%s%s%s; %s", r->status, *name ? " " : "", name, *message ? " (" : "", message, *message ? ")" : "",
		 advice ? advice : advice_of_status(r->status));
}

void s3_tell(const struct s3_store *store, struct object_transfer *t, const struct http_request *r, int code, const char *why)
{
	char words[OBJECT_WHY_BYTES];

	if (!t->failed)
		return;
	explain(store, t->key, r, code, why, words, sizeof(words));
	t->failed(t, words);
}

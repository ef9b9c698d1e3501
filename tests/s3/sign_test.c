/* SPDX-License-Identifier: Apache-2.0 */
/* Signatures of plugins/s3 against those that AWS has published: its suite of Signature Version 4, and the examples of the S3 manual. */
#include "s3/sign.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tn_test.h"

#define EMPTY "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
#define FIELDS(...) (const struct s3_field[]){__VA_ARGS__}, sizeof((const struct s3_field[]){__VA_ARGS__}) / sizeof(struct s3_field)
#define SUITE_TIME "20150830T123600Z"
#define MANUAL_TIME "20130524T000000Z"
#define HOST {"host", "example.amazonaws.com"}
#define DATE {"x-amz-date", SUITE_TIME}
#define BUCKET {"host", "examplebucket.s3.amazonaws.com"}

static const struct s3_credentials suite = {"AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "", "us-east-1"};
static const struct s3_credentials manual = {"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "", "us-east-1"};

static void expect(const struct s3_credentials *who, const struct s3_to_sign *what, const char *signature)
{
	char out[1024], tail[96];

	assert_int_equal(s3_sign(who, what, out, sizeof(out)), 0);
	snprintf(tail, sizeof(tail), "Signature=%s", signature);
	if (!strstr(out, tail))
		fail_msg("%s %s?%s: %s is not %s", what->method, what->path, what->query, out, signature);
}

static void the_published_suite_is_signed_as_published(void **state)
{
	static const struct {
		const char *method, *path, *query, *signature;
	} cases[] = {
		{"GET", "/", "", "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"},
		{"GET", "/", "Param1=value1&Param2=value2", "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500"},
		{"GET", "/%E1%88%B4", "", "8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85"},
		{"POST", "/", "", "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"},
		{"POST", "/", "Param1=value1", "28038455d6de14eafc1f9222cf5aa6f1a96197d7deb8263271d420d138af7f11"},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const struct s3_to_sign what = {cases[i].method, cases[i].path, cases[i].query, FIELDS(HOST, DATE), EMPTY, "service", SUITE_TIME};

		expect(&suite, &what, cases[i].signature);
	}
}

static void the_examples_of_the_manual_are_signed_as_there(void **state)
{
	static const char hash[] = "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072";
	const struct s3_to_sign get = {"GET", "/test.txt", "",
		FIELDS(BUCKET, {"range", "bytes=0-9"}, {"x-amz-content-sha256", EMPTY}, {"x-amz-date", MANUAL_TIME}), EMPTY, "s3", MANUAL_TIME};
	const struct s3_to_sign put = {"PUT", "/test%24file.text", "",
		FIELDS({"date", "Fri, 24 May 2013 00:00:00 GMT"}, BUCKET, {"x-amz-content-sha256", hash}, {"x-amz-date", MANUAL_TIME},
		       {"x-amz-storage-class", "REDUCED_REDUNDANCY"}), hash, "s3", MANUAL_TIME};
	const struct s3_to_sign lifecycle = {"GET", "/", "lifecycle=",
		FIELDS(BUCKET, {"x-amz-content-sha256", EMPTY}, {"x-amz-date", MANUAL_TIME}), EMPTY, "s3", MANUAL_TIME};
	const struct s3_to_sign list = {"GET", "/", "max-keys=2&prefix=J",
		FIELDS(BUCKET, {"x-amz-content-sha256", EMPTY}, {"x-amz-date", MANUAL_TIME}), EMPTY, "s3", MANUAL_TIME};

	expect(&manual, &get, "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
	expect(&manual, &put, "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
	expect(&manual, &lifecycle, "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
	expect(&manual, &list, "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

static void a_body_in_pieces_has_the_hash_of_the_whole(void **state)
{
	char text[] = "..Welcome to Amazon S3.....";
	struct iovec iov[] = {{text, 5}, {text + 5, 0}, {text + 5, sizeof(text) - 6}};
	char out[S3_HEX_BYTES];

	assert_int_equal(s3_hash(iov, 3, 2, 21, out), 0);
	assert_string_equal(out, "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072");
	assert_int_equal(s3_hash(NULL, 0, 0, 0, out), 0);
	assert_string_equal(out, EMPTY);
}

static void keys_are_encoded_and_never_beyond_the_buffer(void **state)
{
	char out[32];

	assert_int_equal(s3_encode("a b+c/\xc3\xa9~", 1, out, sizeof(out)), 17);
	assert_string_equal(out, "a%20b%2Bc/%C3%A9~");
	assert_int_equal(s3_encode("a/b", 0, out, sizeof(out)), 5);
	assert_string_equal(out, "a%2Fb");
	assert_int_equal(s3_encode("ab", 1, out, 3), 2);
	assert_int_equal(s3_encode("abc", 1, out, 3), -E2BIG);
	assert_int_equal(s3_encode("+", 1, out, 3), -E2BIG);
	s3_time(1369353600, out);
	assert_string_equal(out, MANUAL_TIME);
}

static void what_is_too_long_to_sign_is_refused(void **state)
{
	const struct s3_to_sign what = {"GET", "/", "", FIELDS(HOST, DATE), EMPTY, "service", SUITE_TIME};
	char out[1024];

	assert_int_equal(s3_sign(&suite, &what, out, 40), -E2BIG);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_published_suite_is_signed_as_published),
		cmocka_unit_test(the_examples_of_the_manual_are_signed_as_there),
		cmocka_unit_test(a_body_in_pieces_has_the_hash_of_the_whole),
		cmocka_unit_test(keys_are_encoded_and_never_beyond_the_buffer),
		cmocka_unit_test(what_is_too_long_to_sign_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

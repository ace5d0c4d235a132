use super::*;

fn redacted(secrets: &[&str], text: &str, cut_every: usize) -> String {
    let mut redactor = Redactor::new(Hidden::of(secrets.iter().map(|secret| secret.as_bytes())));
    let mut shown: Vec<u8> = text.as_bytes().chunks(cut_every).flat_map(|chunk| redactor.push(chunk)).collect();
    shown.extend(redactor.finish());
    String::from_utf8(shown).expect("text")
}

/// Checks every chunk size.
fn assert_shown(secrets: &[&str], text: &str, expected: &str) {
    for cut_every in 1..=text.len().max(1) {
        assert_eq!(redacted(secrets, text, cut_every), expected, "{secrets:?} in {text:?}, cut every {cut_every}");
    }
}

#[test]
fn secret_in_hexadecimal_is_hidden() {
    let hidden = Hidden::of([&b"Tr0ub4dor&3-\xff"[..]]);
    let digits: Vec<String> = b"Tr0ub4dor&3-\xff".iter().map(|byte| format!("{byte:02x}")).collect();
    let wrapped = format!("{}\n{}", digits[..5].concat(), digits[5..].concat());
    let upper = digits.concat().to_uppercase();
    for spelled in [digits.concat(), digits.join(":"), digits.join(" "), digits.join("\r\n "), upper, wrapped] {
        for cut in 0..=spelled.len() {
            let mut redactor = Redactor::new(hidden.clone());
            let mut shown = redactor.push(format!("> {}", &spelled[..cut]).as_bytes());
            shown.extend(redactor.push(format!("{} <", &spelled[cut..]).as_bytes()));
            shown.extend(redactor.finish());
            assert_eq!(String::from_utf8_lossy(&shown), "> [redacted] <", "{spelled:?} cut at {cut}");
        }
    }
    let short = Redactor::new(Hidden::of([&b"abc"[..]])).all_of("abc 616263");
    assert_eq!(short, "[redacted] 616263", "too short to be hidden so");
}

/// The limit covers an indentation; more blanks are shown at once, or the output of blanks would stall.
#[test]
fn blanks_behind_digits_are_not_held_back() {
    let hidden = Hidden::of([&b"Tr0ub4dor"[..]]);
    let digits: Vec<String> = b"Tr0ub4dor".iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(Redactor::new(hidden.clone()).all_of(&digits.join(&" ".repeat(64))), "[redacted]");
    let mut redactor = Redactor::new(hidden);
    assert_eq!(redactor.push(format!("54{}", " ".repeat(64)).as_bytes()), b"");
    assert_eq!(String::from_utf8_lossy(&redactor.push(b"  ")), format!("54{}", " ".repeat(66)));
}

#[test]
fn secrets_go_wherever_the_chunks_are_cut() {
    for (secrets, text, expected) in [
        (&["hunter2"][..], "password=hunter2\n", "password=[redacted]\n"),
        (&["hunter2"], "hunter hunter2 hunter22", "hunter [redacted] [redacted]2"),
        (&["hunter2\n"], "it is hunter2, they say", "it is [redacted], they say"),
        (&["aab"], "aaab aab", "a[redacted] [redacted]"),
        (&["key", "key-long"], "key key-long key-lon", "[redacted] [redacted] [redacted]"),
        (&["longer-secret", "secret"], "a secret", "a [redacted]"),
        (&["hunter2"], "it ends in hunte", "it ends in [redacted]"),
        (&["hunter2"], "it ends in hu", "it ends in hu"),
        (&["abcd", "bc"], "it ends in abc", "it ends in a[redacted]"),
        (&["ab"], "", ""),
        (&[""], "nothing is secret", "nothing is secret"),
        (&[], "nothing is secret", "nothing is secret"),
    ] {
        assert_shown(secrets, text, expected);
    }
}

#[test]
fn every_long_line_of_a_secret_goes() {
    let key = "-----BEGIN KEY-----\nMIIEvQ==\nab\n";
    assert_shown(&[key], "a MIIEvQ== b -----BEGIN KEY----- ab", "a [redacted] b [redacted] ab");
    assert_shown(&[key], r#"{"key":"-----BEGIN KEY-----\nMIIEvQ==\nab\n"}"#, r#"{"key":"[redacted]\n"}"#);
}

/// A secret that `base64`, `json.dumps`, `jq`, `urllib.parse.quote`, `printf %q` and similar tools must encode.
const SECRET: &str = "it's a \"p\\w\" /é&<🔑 1+1";

#[test]
fn encodings_that_programs_print_are_hidden() {
    for encoded in [
        // base64: plain, with a newline, unpadded, for URLs.
        "aXQncyBhICJwXHciIC/DqSY88J+UkSAxKzE=",
        "aXQncyBhICJwXHciIC/DqSY88J+UkSAxKzEK",
        "aXQncyBhICJwXHciIC/DqSY88J+UkSAxKzE",
        "aXQncyBhICJwXHciIC_DqSY88J-UkSAxKzE=",
        // base64 in lines.
        "aXQncyBhICJwXHci\nIC/DqSY88J+UkSAx\nKzE=",
        "aXQncyBhICJwXHciIC/DqSY88\r\nJ+UkSAxKzE=",
        // URLs: strict, as a form, in lower case, with some characters unescaped.
        "it%27s%20a%20%22p%5Cw%22%20%2F%C3%A9%26%3C%F0%9F%94%91%201%2B1",
        "it%27s+a+%22p%5cw%22+%2f%c3%a9%26%3c%f0%9f%94%91+1%2b1",
        "it's%20a%20%22p%5Cw%22%20/%C3%A9&%3C%F0%9F%94%91%201+1",
        // JSON: by serde, in ASCII, by Go, by PHP, and within a JSON string.
        r#"it's a \"p\\w\" /é&<🔑 1+1"#,
        r#"it's a \"p\\w\" /\u00e9&<\ud83d\udd11 1+1"#,
        r#"it's a \"p\\w\" /é\u0026\u003c🔑 1+1"#,
        r#"it's a \"p\\w\" \/é&<🔑 1+1"#,
        r#"it's a \\\"p\\\\w\\\" /é&<🔑 1+1"#,
        r#"it's a \\\"p\\\\w\\\" /\\u00e9&<\\ud83d\\udd11 1+1"#,
        // Shell words: in quotes, by Python, by `printf %q`.
        r#"it'\''s a "p\w" /é&<🔑 1+1"#,
        r#"it'"'"'s a "p\w" /é&<🔑 1+1"#,
        r#"it\'s\ a\ \"p\\w\"\ /é\&\<🔑\ 1+1"#,
        r#"it\'s a "p\\w" /\303\251&<\360\237\224\221 1+1"#,
        // Python's representation of bytes and texts.
        r#"it\'s a "p\\w" /\xc3\xa9&<\xf0\x9f\x94\x91 1+1"#,
        r#"it\'s a "p\\w" /\xe9&<\U0001f511 1+1"#,
    ] {
        assert_shown(&[SECRET], &format!("before {encoded}, after"), "before [redacted], after");
        assert_eq!(redacted(&[SECRET], encoded, encoded.len()), "[redacted]", "{encoded}");
    }
}

#[test]
fn a_secret_amid_other_base64_is_hidden_but_for_what_it_shares() {
    // After `user:` and `u:`, as `curl --verbose --user` prints them; before `;`.
    for (text, shown) in [
        ("Basic dXNlcjpodW50ZXIyLWlzLW5vdC1pdA==", "Basic dXNlcj[redacted]"),
        ("Basic dTpodW50ZXIyLWlzLW5vdC1pdA==", "Basic dTp[redacted]"),
        ("Basic dXM6aHVudGVyMi1pcy1ub3QtaXQ=", "Basic dXM6[redacted]"),
        ("aHVudGVyMi1pcy1ub3QtaXQ7Cg==", "[redacted]7Cg=="),
    ] {
        let found = redacted(&["hunter2-is-not-it"], text, 7);
        assert!(found.contains("[redacted]") && found.len() <= shown.len() + 2, "{text}: {found}");
        assert!(!found.contains("1bnRlcj") && !found.contains("udGVyM") && !found.contains("W50ZXIy"), "{found}");
    }
}

#[test]
fn what_is_no_secret_is_left_alone() {
    let text = "\\u00 \\xZZ %4 %zz 100% \\\\ \\ud83d\\n aXQn \u{9b} it's a C:\\path 1+1\n";
    assert_shown(&[SECRET], text, text);
    // Too short to be distinguished.
    assert_shown(&["a1"], "YTE= is not hidden, a1 is", "YTE= is not hidden, [redacted] is");
}

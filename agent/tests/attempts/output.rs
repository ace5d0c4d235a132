//! Output: capped on disk, complete up to the cap, followed live.

use std::{fs, time::Duration};

use muster_agent::output::OutputReader;

use crate::site::{DEADLINE, Site};

async fn next(reader: &mut OutputReader) -> Option<Vec<u8>> {
    tokio::time::timeout(DEADLINE, reader.next()).await.expect("in time").expect("readable")
}

#[tokio::test]
async fn output_is_capped_and_says_what_was_shed() {
    let site = Site::new();
    // 40 MiB in lines of 64 bytes: five files' worth, of which two are kept.
    let exit = site.run(&site.script("seq -f '%063.0f' 655360")).await;
    let kept: u64 = ["output.log", "output.log.old"]
        .map(|name| fs::metadata(site.attempt().join(name)).expect(name).len())
        .iter()
        .sum();
    assert!(kept <= 16 * 1024 * 1024 + 200, "{kept}");
    assert!(exit.output_tail.ends_with("655360\n") && exit.output_tail.len() == 8 * 1024, "{}", exit.output_tail.len());
    let mut reader = site.attempts.output(&crate::site::key("it"), None);
    let mut text = String::new();
    while let Some(chunk) = next(&mut reader).await {
        assert!(chunk.len() <= 32 * 1024);
        text.push_str(&String::from_utf8_lossy(&chunk));
    }
    assert!(text.starts_with("… ") && text.contains(" bytes of output before "), "{}", &text[..80]);
    assert!(text.ends_with("655360\n"));
}

#[tokio::test]
async fn a_watcher_sees_output_as_it_comes_and_the_end() {
    let site = Site::new();
    nix::unistd::mkfifo(&site.path("go"), nix::sys::stat::Mode::S_IRWXU).expect("a fifo");
    let request = site.script("echo first; read line < $SITE/go; echo $line");
    site.start(&request).await;
    let mut reader = site.attempts.output(&request.key, None);
    assert_eq!(next(&mut reader).await.as_deref(), Some(b"first\n".as_slice()));
    assert!(tokio::time::timeout(Duration::from_millis(300), reader.next()).await.is_err(), "nothing new yet");
    fs::write(site.path("go"), "second\n").expect("go");
    assert_eq!(next(&mut reader).await.as_deref(), Some(b"second\n".as_slice()));
    assert_eq!(next(&mut reader).await, None);
}

#[tokio::test]
async fn a_tail_begins_before_the_end() {
    let site = Site::new();
    let request = site.script("seq 1000");
    site.run(&request).await;
    for (tail_bytes, expected) in [(Some(9), "999\n1000\n"), (Some(0), ""), (Some(1 << 40), "1\n")] {
        let chunk = site.attempts.output(&request.key, tail_bytes).next_now().expect("readable");
        let text = String::from_utf8(chunk).expect("text");
        assert!(text.starts_with(expected) && (expected == "1\n" || text == expected), "{tail_bytes:?}: {text}");
    }
}

#[tokio::test]
async fn a_follower_keeps_up_across_the_rotation() {
    let site = Site::new();
    nix::unistd::mkfifo(&site.path("go"), nix::sys::stat::Mode::S_IRWXU).expect("a fifo");
    // The first file lacks one line to be full; the reader holds it open during the rotation.
    let request = site.script("seq -f '%063.0f' 131071; read line < $SITE/go; seq -f '%063.0f' 131072 131080");
    site.start(&request).await;
    let mut reader = site.attempts.output(&request.key, None);
    let mut lines = 0;
    while lines < 131_071 {
        let chunk = next(&mut reader).await.expect("more");
        lines += chunk.iter().filter(|byte| **byte == b'\n').count();
    }
    fs::write(site.path("go"), "on\n").expect("go");
    let mut rest = Vec::new();
    while let Some(chunk) = next(&mut reader).await {
        rest.extend(chunk);
    }
    let rest = String::from_utf8(rest).expect("text");
    assert!(site.attempt().join("output.log.old").exists(), "it was rotated");
    let numbers: Vec<u32> = rest.lines().map(|line| line.parse().expect("a number")).collect();
    assert_eq!(numbers, (131_072..=131_080).collect::<Vec<_>>());
}

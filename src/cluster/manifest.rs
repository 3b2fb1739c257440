//! Text into documents: multi-document YAML, `List` kinds and JSON, as users keep Kubernetes objects in Git. The one place
//! that reads YAML. What an object means is not decided here, and no file is opened.
//!
//! A broken document becomes a [`Problem`] with its place; the documents around it are still read. Problems never quote the
//! text, since it may be a Secret.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

/// Longest manifest that is read, bytes. The API server takes at most 3 MiB per object; a file may hold many.
pub const MAX_TEXT: usize = 32 * 1024 * 1024;

/// Most documents that one text may hold.
const MAX_DOCUMENTS: usize = 50_000;

/// Most nodes that aliases may add to one document: far above any manifest, far below what hurts.
const MAX_ALIASED_NODES: usize = 100_000;

/// A line of a file, shown as `FILE:LINE`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The file as the user named it, or `stdin`.
    pub file: Arc<str>,
    /// Line in the file, from 1.
    pub line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// One object as text gave it: a JSON object, still untyped.
#[derive(Clone, Debug)]
pub struct Document {
    /// Where it starts.
    pub place: Place,
    /// The object.
    pub value: Value,
}

/// Something in the text that could not be used.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// Where it is.
    pub place: Place,
    /// Why, without any of the text.
    pub reason: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.reason)
    }
}

/// What a text holds.
#[derive(Clone, Debug, Default)]
pub struct Parsed {
    /// Objects, in the order of the text; lists are flattened.
    pub documents: Vec<Document>,
    /// Documents that could not be read.
    pub problems: Vec<Problem>,
}

/// Reads every document of `text`, which came from `file`.
pub fn parse(file: &Arc<str>, text: &str) -> Parsed {
    let mut parsed = Parsed::default();
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    for (number, chunk) in chunks(text).enumerate() {
        let place = Place { file: Arc::clone(file), line: chunk.line };
        if number >= MAX_DOCUMENTS {
            let reason = format!("more than {MAX_DOCUMENTS} documents in one file; the rest is not read");
            parsed.problems.push(Problem { place, reason });
            break;
        }
        if chunk.text.trim_start().starts_with('{') {
            json(&place, chunk.text, &mut parsed);
        } else {
            match yaml(chunk.text) {
                Ok(value) => flatten(&place, value, &mut parsed),
                Err((line, reason)) => {
                    let line = place.line + line.saturating_sub(1);
                    parsed.problems.push(Problem { place: Place { line, ..place }, reason });
                }
            }
        }
    }
    parsed
}

/// A document's text and its first line in the file.
struct Chunk<'t> {
    text: &'t str,
    line: usize,
}

/// Cuts a stream at its document marks. YAML allows `---` and `...` at the start of a line nowhere else (YAML 1.2 §9.1.2),
/// so that a document that does not parse cannot take its neighbours with it. The line is that of the first content.
fn chunks(text: &str) -> impl Iterator<Item = Chunk<'_>> {
    let mut cuts: Vec<(usize, usize, usize)> = Vec::new();
    let (mut start, mut first_line, mut offset) = (0, 1, 0);
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let mark =
            |m: &str| line.strip_prefix(m).is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']));
        if mark("---") || mark("...") {
            cuts.push((start, offset, first_line));
            // `--- # comment` and `--- {a: b}` keep what follows the mark.
            start = offset + 3;
            first_line = index + 1;
        }
        offset += line.len();
    }
    cuts.push((start, text.len(), first_line));
    cuts.into_iter().filter_map(|(start, end, line)| {
        let body = &text[start..end];
        let blank = |l: &str| {
            let l = l.trim_start();
            l.trim_end().is_empty() || l.starts_with('#') || l.starts_with('%')
        };
        let skipped: Vec<&str> = body.split_inclusive('\n').take_while(|l| blank(l)).collect();
        let skip: usize = skipped.iter().map(|l| l.len()).sum();
        (skip < body.len()).then(|| Chunk { text: &body[skip..], line: line + skipped.len() })
    })
}

/// One YAML document, or the line (from 1 in `text`) and reason of its first error.
fn yaml(text: &str) -> Result<Value, (usize, String)> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_documents: 2 },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: MAX_ALIASED_NODES },
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options::<Value>(text, options).map_err(|error| {
        let error = error.without_snippet();
        let line = error.location().map_or(1, |l| usize::try_from(l.line()).unwrap_or(1));
        let reason = match error {
            serde_saphyr::Error::DuplicateMappingKey { key: Some(key), .. } => {
                format!("the key {key:?} appears twice in one mapping")
            }
            serde_saphyr::Error::Budget { .. } | serde_saphyr::Error::AliasReplayLimitExceeded { .. } => {
                "too large or too deeply nested once its aliases are expanded".to_owned()
            }
            error => reason(&error.to_string()),
        };
        (line, format!("not YAML: {reason}"))
    })
}

/// The message of a parser without the position it appends, which counts from the start of the document.
fn reason(message: &str) -> String {
    let line = message.lines().next().unwrap_or_default();
    let end = [" at line ", " (line "].iter().filter_map(|cut| line.rfind(cut)).min().unwrap_or(line.len());
    line[..end].trim_end_matches([':', ',', '.']).to_owned()
}

/// JSON objects one after another; a text that is no JSON may still be a YAML flow mapping.
fn json(place: &Place, text: &str, parsed: &mut Parsed) {
    let line_of = |offset: usize| place.line + text.as_bytes()[..offset].iter().filter(|b| **b == b'\n').count();
    let mut stream = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let mut start = 0;
    while let Some(item) = stream.next() {
        let skip = text[start..].len() - text[start..].trim_start().len();
        let at = Place { line: line_of(start + skip), ..place.clone() };
        match item {
            Ok(value) => flatten(&at, value, parsed),
            Err(error) => {
                match yaml(&text[start..]) {
                    Ok(value) => flatten(&at, value, parsed),
                    Err(_) => {
                        let line = place.line + error.line().saturating_sub(1);
                        let reason = format!("not JSON: {}", reason(&error.to_string()));
                        parsed.problems.push(Problem { place: Place { line, ..at }, reason });
                    }
                }
                return;
            }
        }
        start = stream.byte_offset();
    }
}

/// Adds an object, or the items of a `List`. Items of a typed list may leave their kind out.
fn flatten(place: &Place, value: Value, parsed: &mut Parsed) {
    let Value::Object(mut object) = value else {
        if !value.is_null() {
            let reason = "not a Kubernetes object: a mapping with apiVersion and kind is expected".to_owned();
            parsed.problems.push(Problem { place: place.clone(), reason });
        }
        return;
    };
    let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default();
    let Some(item_kind) = kind.strip_suffix("List").filter(|_| object.get("items").is_some_and(Value::is_array)) else {
        parsed.documents.push(Document { place: place.clone(), value: Value::Object(object) });
        return;
    };
    let item_kind = item_kind.to_owned();
    let api_version = object.get("apiVersion").cloned();
    let Some(Value::Array(items)) = object.remove("items") else { return };
    for mut item in items {
        if let (Value::Object(item), false, Some(version)) = (&mut item, item_kind.is_empty(), &api_version) {
            item.entry("kind").or_insert_with(|| item_kind.clone().into());
            item.entry("apiVersion").or_insert_with(|| version.clone());
        }
        if item.get("kind").and_then(Value::as_str) == Some("List") {
            let reason = "a List inside a List is not read".to_owned();
            parsed.problems.push(Problem { place: place.clone(), reason });
        } else {
            flatten(place, item, parsed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Parsed {
        parse(&Arc::from("f.yaml"), text)
    }

    fn names(parsed: &Parsed) -> Vec<(&str, usize)> {
        parsed.documents.iter().map(|d| (d.value["metadata"]["name"].as_str().unwrap_or("?"), d.place.line)).collect()
    }

    #[test]
    fn documents_keep_their_lines_over_comments_and_marks() {
        let parsed = read(
            "# head\n---\n# note\nkind: A\nmetadata: {name: a}\n---\n\n---\nkind: B\nmetadata: {name: b}\n...\n--- # c\nkind: C\nmetadata: {name: c}\n",
        );
        assert_eq!(names(&parsed), [("a", 4), ("b", 9), ("c", 13)]);
        assert!(parsed.problems.is_empty(), "{:?}", parsed.problems);
    }

    #[test]
    fn a_broken_document_names_its_line_in_the_file_and_the_others_are_read() {
        let parsed =
            read("kind: A\nmetadata: {name: a}\n---\nkind: B\nspec:\n  - x\n  y: [\n---\nkind: C\nmetadata: {name: c}\n");
        assert_eq!(names(&parsed), [("a", 1), ("c", 9)]);
        assert_eq!(parsed.problems.len(), 1);
        assert!((6..=7).contains(&parsed.problems[0].place.line), "{}", parsed.problems[0]);
        assert!(parsed.problems[0].to_string().starts_with("f.yaml:"), "{}", parsed.problems[0]);
        assert!(!parsed.problems[0].reason.contains("line"), "{}", parsed.problems[0]);
    }

    #[test]
    fn marks_inside_a_block_scalar_do_not_cut() {
        let parsed = read("kind: ConfigMap\nmetadata: {name: a}\ndata:\n  x: |\n    ---\n    y\n");
        assert_eq!(parsed.documents[0].value["data"]["x"], "---\ny\n");
    }

    #[test]
    fn lists_are_flattened_and_items_take_the_kind_of_a_typed_list() {
        let parsed = read(
            "apiVersion: v1\nkind: List\nitems:\n- kind: A\n  metadata: {name: a}\n---\n{\"apiVersion\":\"v1\",\"kind\":\"ServiceList\",\"items\":[{\"metadata\":{\"name\":\"s\"}}]}",
        );
        assert_eq!(names(&parsed), [("a", 2), ("s", 7)].map(|(n, l)| (n, if n == "a" { 1 } else { l })));
        assert_eq!(parsed.documents[1].value["kind"], "Service");
        assert_eq!(parsed.documents[1].value["apiVersion"], "v1");
    }

    #[test]
    fn json_documents_may_follow_one_another_and_errors_have_their_line() {
        let parsed = read(
            "{\"kind\":\"A\",\"metadata\":{\"name\":\"a\"}}\n{\"kind\":\"B\",\n\"metadata\":{\"name\":\"b\"}}\n{\"kind\": nope\n\"x\"",
        );
        assert_eq!(names(&parsed), [("a", 1), ("b", 2)]);
        assert_eq!(parsed.problems[0].place.line, 4);
    }

    #[test]
    fn anchors_and_merge_keys_work_and_an_alias_bomb_is_refused() {
        let parsed = read("kind: A\nx: &x {a: 1}\ny:\n  <<: *x\n  b: 2\nmetadata: {name: a}\n");
        assert_eq!(parsed.documents[0].value["y"], serde_json::json!({"a": 1, "b": 2}));
        let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for level in 1..12 {
            let row: Vec<String> = (0..10).map(|_| format!("*a{}", level - 1)).collect();
            bomb.push_str(&format!("a{level}: &a{level} [{}]\n", row.join(", ")));
        }
        let parsed = read(&bomb);
        assert!(parsed.documents.is_empty());
        assert_eq!(parsed.problems.len(), 1, "{:?}", parsed.problems);
    }

    #[test]
    fn deep_nesting_is_an_error_not_a_crash() {
        for text in ["[".repeat(100_000), "{\"a\":".repeat(100_000), "{a: ".repeat(100_000), "- ".repeat(100_000)] {
            let parsed = read(&text);
            assert!(parsed.documents.is_empty());
            assert_eq!(parsed.problems.len(), 1);
        }
    }

    #[test]
    fn problems_never_quote_the_text() {
        let secret = "c2VjcmV0LXRleHQ";
        for text in [
            format!("kind: Secret\ndata:\n  k: {secret}\n k2: {secret}\n"),
            format!("kind: Secret\ndata: {{k: {secret}\n"),
            format!("{{\"kind\":\"Secret\",\"data\":{{\"k\":\"{secret}\" \"x\":1}}}}"),
            format!("kind: Secret\ndata:\n  k: *{secret}\n"),
            format!("kind: Secret\ndata:\n  k: !!binary {secret}!\n"),
        ] {
            let parsed = read(&text);
            for problem in &parsed.problems {
                assert!(!problem.to_string().contains(secret), "{problem}");
            }
        }
    }

    #[test]
    fn what_is_no_object_is_said_to_be_none() {
        let parsed = read("just text\n---\n- 1\n---\nnull\n---\n# only a comment\n");
        assert_eq!(parsed.problems.iter().map(|p| p.place.line).collect::<Vec<_>>(), [1, 3]);
    }
}

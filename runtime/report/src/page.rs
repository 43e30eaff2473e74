//! A page: one HTML file with all that it needs.

use serde_json::Value;
use std::fmt::Write as _;

/// Apache ECharts 6.1.0, as its package has it.
const CHARTS: &str = include_str!("assets/echarts.min.js");
/// Its licenses and what they ask to be shown with it.
const LICENSES: [&str; 3] = [
    include_str!("assets/echarts.NOTICE"),
    include_str!("assets/echarts.LICENSE"),
    include_str!("assets/d3.LICENSE"),
];
const STYLE: &str = include_str!("assets/page.css");
const COMMON: &str = include_str!("assets/page.js");

/// What a page is made of.
#[derive(Clone, Debug)]
pub struct Page<'a> {
    /// Its title and heading.
    pub title: &'a str,
    /// What its script draws.
    pub data: Value,
    /// The script of this kind of page: it draws `page.data` by the functions of `assets/page.js`.
    pub script: &'a str,
    /// Style of its own, after the common one.
    pub style: &'a str,
}

impl Page<'_> {
    /// The file.
    #[must_use]
    pub fn html(&self) -> String {
        let title = escaped(self.title);
        let mut out = format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <link rel=\"icon\" href=\"data:,\">\n<title>{title}</title>\n\
             <style>\n{STYLE}{}</style>\n</head>\n<body>\n\
             <header><h1>{title}</h1><button id=\"theme\" type=\"button\">Theme</button></header>\n\
             <main id=\"main\"><noscript>This page draws its charts with JavaScript, which is switched off.</noscript></main>\n\
             <footer><p>Made by Meshwright {}. Charts: Apache ECharts.</p>\
             <details><summary>Licenses</summary><pre>{}</pre></details></footer>\n",
            self.style,
            env!("CARGO_PKG_VERSION"),
            escaped(&LICENSES.join("\n")),
        );
        // A writer to a string does not fail.
        let _ = writeln!(
            out,
            "<script type=\"application/json\" id=\"data\">{}</script>",
            in_a_script(&self.data)
        );
        for script in [CHARTS, COMMON, self.script] {
            let _ = writeln!(out, "<script>\n{script}\n</script>");
        }
        out.push_str("</body>\n</html>\n");
        out
    }
}

/// Text as HTML shows it.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// JSON that ends no script, whatever its strings say.
fn in_a_script(data: &Value) -> String {
    data.to_string().replace('<', "\\u003c")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn data_cannot_leave_its_script() {
        let data = json!({ "name": "</script><script>alert(1)</script><!--" });
        let page = Page { title: "a <b> & \"c\"", data: data.clone(), script: "", style: "" }.html();
        let (_, rest) = page.split_once("id=\"data\">").unwrap();
        let (inside, _) = rest.split_once("</script>").unwrap();
        assert_eq!(serde_json::from_str::<Value>(inside).unwrap(), data);
        assert!(page.contains("<title>a &lt;b&gt; &amp; &quot;c&quot;</title>"));
    }

    #[test]
    fn a_page_loads_nothing() {
        let page = Page { title: "t", data: Value::Null, script: "", style: "" }.html();
        // Links in licenses and comments are text; what a browser would fetch is in an attribute or a style.
        for fetched in ["src=", "href=\"http", "@import", "url(http"] {
            assert!(!page.replace(CHARTS, "").contains(fetched), "{fetched}");
        }
        for script in [STYLE, COMMON] {
            assert!(!script.contains("http://") && !script.contains("https://"));
        }
    }
}

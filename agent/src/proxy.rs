//! Proxies for downloads, in order of precedence: from an item's params, from agent.toml, from the environment of the
//! agent. Messages omit their passwords.

use std::{collections::BTreeSet, fmt};

use reqwest::{NoProxy, Proxy, Url};
use serde::{Deserialize, Serialize};

/// Value that disables an inherited proxy.
const NONE: &str = "none";

/// A valid proxy URL.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ProxyUrl(String);

impl ProxyUrl {
    /// Parses `http://[USER:PASSWORD@]HOST[:PORT]`, or https; the default scheme is http. `Ok(None)`: no proxy.
    fn parse(text: &str) -> Result<Option<Self>, ProxyError> {
        let text = text.trim();
        if text.is_empty() || text == NONE {
            return Ok(None);
        }
        let text = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let url = Url::parse(&text).map_err(|_| ProxyError)?;
        let is_proxy = matches!(url.scheme(), "http" | "https")
            && url.host_str().is_some_and(|host| !host.is_empty())
            && url.path() == "/"
            && url.query().is_none();
        if is_proxy { Ok(Some(Self(text))) } else { Err(ProxyError) }
    }
}

/// Shows scheme, host and port only.
impl fmt::Display for ProxyUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ok(url) = Url::parse(&self.0) else { return f.write_str("?") };
        write!(f, "{}://{}", url.scheme(), url.host_str().unwrap_or_default())?;
        url.port().map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

impl fmt::Debug for ProxyUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An invalid proxy URL. The message omits the text, which may contain a password.
#[derive(Debug, thiserror::Error)]
#[error("it is neither http://[USER:PASSWORD@]HOST[:PORT], nor https://…, nor `{NONE}`")]
pub struct ProxyError;

/// Proxies per scheme, and the exceptions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proxies {
    http: Option<ProxyUrl>,
    https: Option<ProxyUrl>,
    /// Hosts, domains, addresses and networks, separated by commas, in the usual `no_proxy` syntax.
    except: String,
}

impl Proxies {
    /// One proxy for both schemes.
    ///
    /// # Errors
    /// [`ProxyError`].
    pub fn of(proxy: &str, except: &str) -> Result<Self, ProxyError> {
        let proxy = ProxyUrl::parse(proxy)?;
        Ok(Self { http: proxy.clone(), https: proxy, except: except.to_owned() })
    }

    /// Reads `http_proxy`, `https_proxy`, `all_proxy` and `no_proxy`, in lower case or else in upper case. The returned
    /// names are variables with invalid values; they count as unset, because they may be meant for other programs.
    #[must_use]
    pub fn of_environment(get: impl Fn(&str) -> Option<String>) -> (Self, BTreeSet<String>) {
        let mut unusable = BTreeSet::new();
        let mut proxy = |name: &str| {
            for name in [name, "all_proxy"].into_iter().flat_map(|name| [name.to_owned(), name.to_ascii_uppercase()]) {
                let Some(value) = get(&name).filter(|value| !value.is_empty()) else { continue };
                match ProxyUrl::parse(&value) {
                    Ok(proxy) => return proxy,
                    Err(ProxyError) => unusable.insert(name),
                };
            }
            None
        };
        let (http, https) = (proxy("http_proxy"), proxy("https_proxy"));
        let except = ["no_proxy", "NO_PROXY"].into_iter().filter_map(get).find(|value| !value.is_empty());
        (Self { http, https, except: except.unwrap_or_default() }, unusable)
    }

    /// Applies the settings of an item.
    pub(crate) fn with_params(self, proxy: Option<&str>, except: Option<&str>) -> Result<Self, ProxyError> {
        let own = proxy.map(|proxy| Self::of(proxy, &self.except)).transpose()?.unwrap_or(self);
        Ok(match except {
            Some(except) => own.but_for(except),
            None => own,
        })
    }

    /// Replaces the exceptions.
    #[must_use]
    pub fn but_for(self, except: &str) -> Self {
        Self { except: except.to_owned(), ..self }
    }

    /// Is no proxy set?
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.http.is_none() && self.https.is_none()
    }

    /// Rules for the HTTP client.
    pub(crate) fn rules(&self) -> reqwest::Result<Vec<Proxy>> {
        let except = || NoProxy::from_string(&self.except);
        let http = self.http.iter().map(|proxy| Proxy::http(&proxy.0));
        let https = self.https.iter().map(|proxy| Proxy::https(&proxy.0));
        http.chain(https).map(|rule| Ok(rule?.no_proxy(except()))).collect()
    }
}

/// Text for people that omits passwords.
impl fmt::Display for Proxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        match (&self.http, &self.https) {
            (Some(http), Some(https)) if http == https => parts.push(http.to_string()),
            (http, https) => {
                parts.extend(http.iter().map(|proxy| format!("{proxy} for http")));
                parts.extend(https.iter().map(|proxy| format!("{proxy} for https")));
            }
        }
        if !self.except.is_empty() {
            parts.push(format!("but not for {}", self.except));
        }
        f.write_str(&parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxy_urls_are_checked() {
        for (text, expected) in [
            ("http://proxy.corp:3128", Some("http://proxy.corp:3128")),
            ("proxy.corp:3128", Some("http://proxy.corp:3128")),
            ("https://u:p@[fd00::1]:8443/", Some("https://[fd00::1]:8443")),
            ("none", None),
            (" ", None),
        ] {
            let proxy = ProxyUrl::parse(text).expect(text);
            assert_eq!(proxy.map(|proxy| proxy.to_string()).as_deref(), expected, "{text}");
        }
        for bad in ["ftp://proxy", "socks5://proxy", "http://", "http://proxy/path", "http://proxy?x", "http://a b"] {
            assert!(ProxyUrl::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn environment_names_proxies() {
        let of = |variables: &[(&str, &str)]| {
            let get = |name: &str| variables.iter().find(|(of, _)| *of == name).map(|(_, value)| (*value).to_owned());
            let (proxies, unusable) = Proxies::of_environment(get);
            (proxies.to_string(), unusable.into_iter().collect::<Vec<_>>().join(" "))
        };
        for (variables, proxies, unusable) in [
            (&[][..], "", ""),
            (
                &[("http_proxy", "http://u:p@a:1"), ("HTTP_PROXY", "http://b:2"), ("no_proxy", "c,10.0.0.0/8")],
                "http://a:1 for http, but not for c,10.0.0.0/8",
                "",
            ),
            (&[("ALL_PROXY", "http://a"), ("https_proxy", "http://a")], "http://a", ""),
            (&[("HTTPS_PROXY", "ftp://u:p@a")], "", "HTTPS_PROXY"),
            (&[("all_proxy", "socks5://a"), ("http_proxy", "http://a")], "http://a for http", "all_proxy"),
            (&[("https_proxy", "nonsense://"), ("all_proxy", "http://a")], "http://a", "https_proxy"),
            (&[("http_proxy", "none"), ("all_proxy", "http://a")], "http://a for https", ""),
        ] {
            assert_eq!(of(variables), (proxies.to_owned(), unusable.to_owned()), "{variables:?}");
        }
    }

    #[test]
    fn item_overrides_agent() {
        let agent = || Proxies::of("http://u:p@a", "x").expect("a proxy");
        let with = |proxy, except| agent().with_params(proxy, except).expect("proxies").to_string();
        assert_eq!(with(None, None), "http://a, but not for x");
        assert_eq!(with(Some("http://b"), None), "http://b, but not for x");
        assert_eq!(with(None, Some("")), "http://a");
        assert!(agent().with_params(Some("none"), None).expect("proxies").is_empty());
        assert!(!format!("{:?} {}", agent(), agent()).contains("u:p"));
    }
}

//! Where the server is, and how to talk to it.

use std::fmt;
use std::time::Duration;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo};
use steadfast_store::Codec;

use crate::names::Prefix;

/// How to use a Redis or Valkey server.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it is.
    pub place: Place,
    /// As whom.
    pub login: Login,
    /// As whom to talk to sentinels, if they want to know.
    pub sentinel_login: Login,
    /// Which of the numbered databases; Cluster has only 0.
    pub database: u32,
    /// Whether and how the connection is encrypted.
    pub tls: Tls,
    /// What all keys begin with. Two systems on one server need two prefixes.
    pub prefix: Prefix,
    /// How long a command may take. A claim is void after that, however late it arrives; raising it makes a caller wait
    /// longer for a server that is gone.
    pub command_timeout: Duration,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// Whether replicas have to confirm what was written before it counts.
    pub confirm: Confirm,
    /// How records are written down.
    pub codec: Codec,
}

/// Where servers are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// One server.
    Server(Host),
    /// Whichever server the sentinels say is the primary.
    Sentinel {
        /// What they call it.
        service: String,
        /// The sentinels.
        sentinels: Vec<Host>,
    },
    /// A Cluster; some of its nodes.
    Cluster(Vec<Host>),
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Its name or address.
    pub name: String,
    /// Its port.
    pub port: u16,
}

/// A user and a password. Never shown.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Login {
    /// The user; nothing means the default one.
    pub user: Option<String>,
    /// The password.
    pub password: Option<String>,
}

/// Whether a connection is encrypted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tls {
    /// It is not.
    Off,
    /// It is; the certificate must come from somebody whom this machine trusts.
    Trusted,
    /// It is; the certificate must come from one of these, in PEM.
    Authority(Vec<u8>),
}

/// What has to be true before a write counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confirm {
    /// The primary has it.
    Primary,
    /// So many replicas have it too. Costs their round trip with every write; together with `appendfsync always` nothing
    /// that was acknowledged is lost in a failover.
    Replicas {
        /// How many.
        count: u32,
        /// How long they may take; a write that they do not confirm counts as unanswered.
        within: Duration,
    },
}

/// Why an address cannot be used. Does not show it: there may be a password in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidUrl {
    /// It does not begin with a scheme that we know.
    Scheme,
    /// There is no host, or one that cannot be one.
    Host,
    /// A port is not a number.
    Port,
    /// The database is not a number.
    Database,
    /// Sentinels are given, but not what they call the primary.
    Service,
    /// A `%` in the user or the password is not followed by two hexadecimal digits.
    Escape,
    /// A Cluster has only database 0.
    ClusterDatabase,
}

impl Options {
    /// The settings that an address stands for; the rest as usual.
    ///
    /// - `redis://user:password@host:6379/0`, one server; `rediss://` with TLS
    /// - `redis+sentinel://user:password@host:26379,host:26379/service/0`; `rediss+sentinel://`
    /// - `redis+cluster://user:password@host:6379,host:6379`; `rediss+cluster://`
    ///
    /// `valkey` may stand for `redis`. User and password are escaped as in every URL: `%40` is `@`.
    pub fn parse(url: &str) -> Result<Self, InvalidUrl> {
        let (scheme, rest) = url.split_once("://").ok_or(InvalidUrl::Scheme)?;
        let (base, form) = scheme.split_once('+').unwrap_or((scheme, ""));
        let tls = match base {
            "redis" | "valkey" => Tls::Off,
            "rediss" | "valkeys" => Tls::Trusted,
            _ => return Err(InvalidUrl::Scheme),
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (Login::parse(login)?, hosts),
            None => (Login::default(), authority),
        };
        let path = path.trim_end_matches('/');
        let hosts =
            |port| hosts.split(',').map(|host| Host::parse(host, port)).collect::<Result<Vec<_>, _>>();
        let (place, database) = match form {
            "" => {
                let mut hosts = hosts(6379)?;
                let host = hosts.pop().filter(|_| hosts.is_empty()).ok_or(InvalidUrl::Host)?;
                (Place::Server(host), path)
            }
            "sentinel" => {
                let (service, database) = path.split_once('/').unwrap_or((path, ""));
                if service.is_empty() {
                    return Err(InvalidUrl::Service);
                }
                (Place::Sentinel { service: service.to_owned(), sentinels: hosts(26379)? }, database)
            }
            "cluster" => (Place::Cluster(hosts(6379)?), path),
            _ => return Err(InvalidUrl::Scheme),
        };
        let database =
            if database.is_empty() { 0 } else { database.parse().map_err(|_| InvalidUrl::Database)? };
        if matches!(place, Place::Cluster(_)) && database != 0 {
            return Err(InvalidUrl::ClusterDatabase);
        }
        Ok(Self {
            place,
            login,
            sentinel_login: Login::default(),
            database,
            tls,
            prefix: Prefix::default(),
            command_timeout: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(2),
            confirm: Confirm::Primary,
            codec: Codec::default(),
        })
    }

    /// How the client library reaches a host.
    pub(crate) fn connection(&self, host: &Host) -> redis::RedisResult<ConnectionInfo> {
        let Login { user, password } = &self.login;
        let mut settings = RedisConnectionInfo::default()
            .set_db(i64::from(self.database))
            .set_lib_name("steadfast", env!("CARGO_PKG_VERSION"));
        if let Some(user) = user {
            settings = settings.set_username(user);
        }
        if let Some(password) = password {
            settings = settings.set_password(password);
        }
        Ok(self.address(host).into_connection_info()?.set_redis_settings(settings))
    }

    /// The address of a host for the client library.
    pub(crate) fn address(&self, Host { name, port }: &Host) -> ConnectionAddr {
        match self.tls {
            Tls::Off => ConnectionAddr::Tcp(name.clone(), *port),
            Tls::Trusted | Tls::Authority(_) => {
                ConnectionAddr::TcpTls { host: name.clone(), port: *port, insecure: false, tls_params: None }
            }
        }
    }
}

impl Login {
    fn parse(text: &str) -> Result<Self, InvalidUrl> {
        let (user, password) = match text.split_once(':') {
            Some((user, password)) => (user, Some(unescape(password)?)),
            None => (text, None),
        };
        let user = Some(unescape(user)?).filter(|user| !user.is_empty());
        Ok(Self { user, password })
    }
}

impl Host {
    fn parse(text: &str, usual: u16) -> Result<Self, InvalidUrl> {
        // An IPv6 address stands in brackets, or its colons would be taken for that of the port.
        let (name, port) = match text
            .strip_prefix('[')
            .map(|rest| rest.split_once(']').ok_or(InvalidUrl::Host))
            .transpose()?
        {
            Some((address, port)) => (address, port.strip_prefix(':')),
            None => text.split_once(':').map_or((text, None), |(name, port)| (name, Some(port))),
        };
        let port = port.map_or(Ok(usual), |port| port.parse().map_err(|_| InvalidUrl::Port))?;
        if name.is_empty() || name.contains(|c: char| c.is_whitespace() || matches!(c, '@' | '?' | '#')) {
            return Err(InvalidUrl::Host);
        }
        Ok(Self { name: name.to_owned(), port })
    }
}

fn unescape(text: &str) -> Result<String, InvalidUrl> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let mut digit =
                    || rest.next().and_then(|byte| char::from(byte).to_digit(16)).ok_or(InvalidUrl::Escape);
                let (high, low) = (digit()?, digit()?);
                u8::try_from(high * 16 + low).map_err(|_| InvalidUrl::Escape)?
            }
            plain => plain,
        });
    }
    String::from_utf8(bytes).map_err(|_| InvalidUrl::Escape)
}

/// Where, for messages: without user and password.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |hosts: &[Host]| hosts.iter().map(Host::to_string).collect::<Vec<_>>().join(",");
        match self {
            Self::Server(host) => host.fmt(f),
            Self::Sentinel { service, sentinels } => {
                write!(f, "{} (sentinels of {service})", list(sentinels))
            }
            Self::Cluster(nodes) => write!(f, "{} (cluster)", list(nodes)),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name.contains(':') {
            write!(f, "[{}]:{}", self.name, self.port)
        } else {
            write!(f, "{}:{}", self.name, self.port)
        }
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.password.is_some() { "Login(…)" } else { "Login" })
    }
}

impl fmt::Display for InvalidUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Scheme => {
                "the redis url begins with none of redis://, rediss://, redis+sentinel://, redis+cluster:// (or rediss+…, valkey…): write redis://host:6379"
            }
            Self::Host => "the redis url names no host: write redis://host:6379; several, with commas, only for sentinel and cluster",
            Self::Port => "a port in the redis url is not a number up to 65535: write redis://host:6379",
            Self::Database => "the database in the redis url is not a number: write redis://host:6379/0",
            Self::Service => {
                "the redis url does not say what the sentinels call the primary: write redis+sentinel://host:26379/name"
            }
            Self::Escape => {
                "the user or password in the redis url has a % that is not followed by two hexadecimal digits: write %25 for it"
            }
            Self::ClusterDatabase => "a redis cluster has only database 0: leave the number out",
        })
    }
}

impl std::error::Error for InvalidUrl {}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, port: u16) -> Host {
        Host { name: name.to_owned(), port }
    }

    #[test]
    fn addresses_say_where_and_as_whom() {
        let login = |user: Option<&str>, password: Option<&str>| Login {
            user: user.map(str::to_owned),
            password: password.map(str::to_owned),
        };
        let sentinels = |sentinels: Vec<Host>| Place::Sentinel { service: "main".to_owned(), sentinels };
        for (url, place, as_whom, database, tls) in [
            ("redis://h", Place::Server(host("h", 6379)), login(None, None), 0, Tls::Off),
            (
                "rediss://u:p%40%25@h:7/3",
                Place::Server(host("h", 7)),
                login(Some("u"), Some("p@%")),
                3,
                Tls::Trusted,
            ),
            ("valkey://:a:b@h/", Place::Server(host("h", 6379)), login(None, Some("a:b")), 0, Tls::Off),
            ("redis://[::1]:7", Place::Server(host("::1", 7)), login(None, None), 0, Tls::Off),
            (
                "redis+sentinel://:p@a:1,b/main/2",
                sentinels(vec![host("a", 1), host("b", 26379)]),
                login(None, Some("p")),
                2,
                Tls::Off,
            ),
            (
                "rediss+cluster://a:1,b:2",
                Place::Cluster(vec![host("a", 1), host("b", 2)]),
                login(None, None),
                0,
                Tls::Trusted,
            ),
        ] {
            let options = Options::parse(url).unwrap();
            assert_eq!(
                (options.place, options.login, options.database, options.tls),
                (place, as_whom, database, tls),
                "{url}"
            );
        }
    }

    #[test]
    fn what_cannot_be_an_address_is_refused_with_what_to_write_instead() {
        for (url, why) in [
            ("localhost:6379", InvalidUrl::Scheme),
            ("http://h", InvalidUrl::Scheme),
            ("redis+moon://h", InvalidUrl::Scheme),
            ("redis://", InvalidUrl::Host),
            ("redis://a,b", InvalidUrl::Host),
            ("redis://[::1", InvalidUrl::Host),
            ("redis://h:x", InvalidUrl::Port),
            ("redis://h:70000", InvalidUrl::Port),
            ("redis://h/x", InvalidUrl::Database),
            ("redis+sentinel://h", InvalidUrl::Service),
            ("redis+cluster://h/1", InvalidUrl::ClusterDatabase),
            ("redis://:%4@h", InvalidUrl::Escape),
        ] {
            assert_eq!(Options::parse(url).err(), Some(why), "{url}");
        }
    }

    #[test]
    fn a_password_is_never_shown() {
        let options = Options::parse("redis://someone:hunter2@h").unwrap();
        for shown in [format!("{options:?}"), options.place.to_string()] {
            assert!(!shown.contains("hunter2") && !shown.contains("someone"), "{shown}");
        }
    }
}

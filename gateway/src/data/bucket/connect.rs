//! The client of a bucket, from its settings. An option that the client does not know is refused.

use std::{collections::BTreeMap, str::FromStr, sync::Arc, time::Duration};

use anyhow::{Context, bail, ensure};
use object_store::{
    BackoffConfig, Certificate, ClientOptions, ObjectStore, ObjectStoreScheme, RetryConfig, aws::AmazonS3Builder,
    azure::MicrosoftAzureBuilder, gcp::GoogleCloudStorageBuilder, prefix::PrefixStore,
};
use url::Url;

use crate::{config::Bucket, secret_file};

/// How long one request may transfer no byte. A client that reads slowly causes such pauses, too.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// How long a request that failed for a temporary reason is repeated. After this time clients have given up.
const RETRIED_FOR: Duration = Duration::from_secs(20);
const RETRIES_MAX: usize = 5;

/// Connects at the first call.
///
/// # Errors
/// The settings name no bucket, or an option that its client does not know, or a file cannot be read.
pub(super) fn connect(settings: &Bucket) -> anyhow::Result<Arc<dyn ObjectStore>> {
    // The client takes the cryptography that the process has chosen. An error says that it is chosen already: this one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let url = Url::parse(&settings.url).context("url")?;
    let (scheme, prefix) = ObjectStoreScheme::parse(&url).context("url")?;
    let mut options = settings.options.clone();
    if let Some(path) = &settings.secrets_file {
        for (name, value) in secret_file::read::<BTreeMap<String, String>>(path)? {
            ensure!(!options.contains_key(&name), "secrets_file: the option `{name}` is in `options`, too");
            options.insert(name, value);
        }
    }
    let client = client_options(settings)?;
    let retry = RetryConfig { backoff: BackoffConfig::default(), max_retries: RETRIES_MAX, retry_timeout: RETRIED_FOR };
    macro_rules! build {
        ($builder:ty) => {{
            let mut builder = <$builder>::new().with_url(url.as_str()).with_client_options(client).with_retry(retry);
            for (name, value) in options {
                builder = builder.with_config(known(&name)?, value);
            }
            Arc::new(PrefixStore::new(builder.build()?, prefix)) as Arc<dyn ObjectStore>
        }};
    }
    Ok(match scheme {
        ObjectStoreScheme::AmazonS3 => build!(AmazonS3Builder),
        ObjectStoreScheme::GoogleCloudStorage => build!(GoogleCloudStorageBuilder),
        ObjectStoreScheme::MicrosoftAzure => build!(MicrosoftAzureBuilder),
        _ => bail!("url: `{url}` is no bucket of S3 (s3://), Google Cloud Storage (gs://) or Azure (az://)"),
    })
}

fn known<K: FromStr>(name: &str) -> anyhow::Result<K> {
    // The error quotes nothing but the name.
    name.parse().ok().with_context(|| format!("options: `{name}` is no option of such a store"))
}

fn client_options(settings: &Bucket) -> anyhow::Result<ClientOptions> {
    // No limit for a whole request: an object of 5 GiB takes its time.
    let mut client = ClientOptions::new().with_timeout_disabled().with_read_timeout(IDLE_MAX);
    if let Some(path) = &settings.ca_file {
        let bundle = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let certificates = Certificate::from_pem_bundle(&bundle).context("ca_file")?;
        ensure!(!certificates.is_empty(), "ca_file: {} has no certificate", path.display());
        client = certificates.into_iter().fold(client.with_no_system_certificates(true), |client, certificate| {
            client.with_root_certificate(certificate)
        });
    }
    Ok(client)
}

#[cfg(test)]
mod tests {
    use mantle_tls::testing::{Authority, Files};
    use object_store::ObjectStoreExt;
    use rustls::{ServerConfig, pki_types::PrivateKeyDer};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };
    use tokio_rustls::TlsAcceptor;

    use super::*;

    fn refusal(url: &str, options: &[(&str, &str)]) -> Option<String> {
        let options = options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let bucket = Bucket { url: url.into(), options, secrets_file: None, ca_file: None };
        connect(&bucket).err().map(|error| format!("{error:#}"))
    }

    #[test]
    fn buckets_of_each_kind_are_accepted() {
        let keys = [("aws_region", "us-east-1"), ("aws_access_key_id", "a"), ("aws_secret_access_key", "s")];
        assert_eq!(refusal("s3://bucket/a/prefix", &keys), None);
        assert_eq!(refusal("gs://bucket", &[("google_skip_signature", "true")]), None);
        assert_eq!(refusal("az://container/prefix", &[("azure_storage_account_name", "a")]), None);
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for (url, options, told) in [
            ("file:///tmp", &[][..], "no bucket"),
            ("memory:///", &[], "no bucket"),
            ("http://127.0.0.1/bucket", &[], "no bucket"),
            ("bucket", &[], "url"),
            ("s3://bucket", &[("aws_surprise", "1")], "aws_surprise"),
            ("s3://bucket", &[("azure_storage_account_name", "a")], "azure_storage_account_name"),
            ("s3://bucket", &[("aws_allow_http", "maybe")], "maybe"),
        ] {
            let error = refusal(url, options).unwrap_or_else(|| panic!("{url} {options:?} was accepted"));
            assert!(error.contains(told), "{error}");
        }
    }

    /// A service that answers each request with 404, by a certificate of this authority; answers its address.
    async fn serve(authority: &Authority) -> String {
        let (certificate, key) = authority.issue("bucket", &["localhost"], |_| ());
        let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = config.with_no_client_auth().with_single_cert(vec![certificate.der().clone()], key).unwrap();
        let (acceptor, listener) =
            (TlsAcceptor::from(Arc::new(config)), TcpListener::bind("localhost:0").await.unwrap());
        let address = format!("https://localhost:{}", listener.local_addr().unwrap().port());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let mut stream = acceptor.accept(stream).await?;
                    stream.read_buf(&mut Vec::with_capacity(4096)).await?;
                    stream
                        .write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
                        .await?;
                    stream.shutdown().await
                });
            }
        });
        address
    }

    #[tokio::test]
    async fn a_bucket_is_believed_by_its_certificate() {
        let (ours, other) = (Authority::default(), Authority::default());
        let folder = tempfile::tempdir().unwrap();
        for (name, authority, is_believed) in [("ours", &ours, true), ("other", &other, false)] {
            let files = Files::new(&folder.path().join(name), &[authority], authority, ("bucket", "localhost"));
            let options = [("aws_endpoint", serve(&ours).await.as_str()), ("aws_skip_signature", "true")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()));
            let bucket = Bucket {
                url: "s3://bucket".into(),
                options: options.into(),
                secrets_file: None,
                ca_file: Some(files.path("ca.crt")),
            };
            let answer = connect(&bucket).unwrap().head(&"key".into()).await.unwrap_err();
            assert_eq!(matches!(answer, object_store::Error::NotFound { .. }), is_believed, "{name}: {answer}");
        }
    }

    #[test]
    fn secrets_are_read_from_a_file_of_their_own() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let bucket = |options: &[(&str, &str)]| Bucket {
            url: "s3://bucket".into(),
            options: options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            secrets_file: Some(file.path().to_owned()),
            ca_file: None,
        };
        std::fs::write(file.path(), "aws_secret_access_key = \"hush\"").unwrap();
        assert!(connect(&bucket(&[("aws_access_key_id", "a")])).is_ok());
        let error = connect(&bucket(&[("aws_secret_access_key", "other")])).unwrap_err();
        assert!(format!("{error:#}").contains("too"), "{error:#}");
        std::fs::write(file.path(), "aws_surprise = \"hush\"").unwrap();
        let error = format!("{:#}", connect(&bucket(&[])).unwrap_err());
        assert!(error.contains("aws_surprise") && !error.contains("hush"), "{error}");
    }
}

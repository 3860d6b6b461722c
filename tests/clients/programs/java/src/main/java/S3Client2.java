import java.net.URI;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.Executors;
import software.amazon.awssdk.core.async.AsyncRequestBody;
import software.amazon.awssdk.core.async.AsyncResponseTransformer;
import software.amazon.awssdk.core.util.VersionInfo;
import software.amazon.awssdk.services.s3.S3AsyncClient;
import software.amazon.awssdk.services.s3.S3Configuration;
import software.amazon.awssdk.services.s3.model.Delete;
import software.amazon.awssdk.services.s3.model.ObjectIdentifier;
import software.amazon.awssdk.services.s3.presigner.S3Presigner;

/** The AWS SDK for Java 2: its asynchronous client, which sends and reads large objects in parts. */
public class S3Client2 {
    public static void main(String[] a) throws Exception {
        if (a[0].equals("version")) {
            System.out.println(VersionInfo.SDK_VERSION);
            return;
        }
        URI endpoint = URI.create(System.getenv("AWS_ENDPOINT_URL"));
        String bucket = a[1], key = a.length > 2 ? a[2] : null;
        try (S3AsyncClient s3 =
                S3AsyncClient.builder().endpointOverride(endpoint).forcePathStyle(true).multipartEnabled(true).build()) {
            switch (a[0]) {
                case "create" -> s3.createBucket(b -> b.bucket(bucket)).join();
                case "put" -> s3.putObject(b -> b.bucket(bucket).key(key), Path.of(a[3])).join();
                case "put_unknown" -> {
                    var threads = Executors.newSingleThreadExecutor();
                    var body = AsyncRequestBody.fromInputStream(b -> b.inputStream(System.in).executor(threads));
                    s3.putObject(b -> b.bucket(bucket).key(key), body).join();
                    threads.shutdown();
                }
                case "get" -> s3.getObject(b -> b.bucket(bucket).key(key), Path.of(a[3])).join();
                case "range" -> s3.getObject(b -> b.bucket(bucket).key(key).range("bytes=" + a[4] + "-" + a[5]),
                        AsyncResponseTransformer.toFile(Path.of(a[3]))).join();
                case "list" -> s3.listObjectsV2Paginator(b -> b.bucket(bucket).prefix(key)).contents()
                        .subscribe(found -> System.out.println(found.key())).join();
                case "copy" -> s3.copyObject(b -> b.sourceBucket(bucket).sourceKey(key).destinationBucket(bucket)
                        .destinationKey(a[3])).join();
                case "delete" -> s3.deleteObject(b -> b.bucket(bucket).key(key)).join();
                case "delete_tree" -> {
                    var keys = new java.util.concurrent.ConcurrentLinkedQueue<ObjectIdentifier>();
                    s3.listObjectsV2Paginator(b -> b.bucket(bucket).prefix(key)).contents()
                            .subscribe(found -> keys.add(ObjectIdentifier.builder().key(found.key()).build())).join();
                    s3.deleteObjects(b -> b.bucket(bucket).delete(Delete.builder().objects(keys).build())).join();
                }
                case "put_metadata" -> s3.putObject(b -> b.bucket(bucket).key(key).metadata(Map.of("colour", "blue")),
                        Path.of(a[3])).join();
                case "presign" -> {
                    var path = S3Configuration.builder().pathStyleAccessEnabled(true).build();
                    try (S3Presigner signer =
                            S3Presigner.builder().endpointOverride(endpoint).serviceConfiguration(path).build()) {
                        System.out.println(signer.presignGetObject(b -> b.signatureDuration(Duration.ofMinutes(10))
                                .getObjectRequest(g -> g.bucket(bucket).key(key))).url());
                    }
                }
                default -> throw new IllegalArgumentException(a[0]);
            }
        }
    }
}

module minio-go-client

go 1.25

require github.com/minio/minio-go/v7 v7.0.95

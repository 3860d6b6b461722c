// minio-go with its defaults. The first argument names the operation.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	arg, ctx := os.Args[2:], context.Background()
	if os.Args[1] == "version" {
		info, _ := debug.ReadBuildInfo()
		for _, dep := range info.Deps {
			if strings.Contains(dep.Path, "minio-go") {
				fmt.Println(dep.Version)
			}
		}
		return
	}
	c, err := minio.New(strings.TrimPrefix(os.Getenv("AWS_ENDPOINT_URL"), "http://"), &minio.Options{
		Creds:  credentials.NewEnvAWS(),
		Region: os.Getenv("AWS_REGION"),
	})
	check(err)
	switch os.Args[1] {
	case "create":
		check(c.MakeBucket(ctx, arg[0], minio.MakeBucketOptions{}))
	case "put":
		_, err = c.FPutObject(ctx, arg[0], arg[1], arg[2], minio.PutObjectOptions{})
		check(err)
	case "put_unknown":
		_, err = c.PutObject(ctx, arg[0], arg[1], os.Stdin, -1, minio.PutObjectOptions{PartSize: 8 << 20})
		check(err)
	case "get":
		check(c.FGetObject(ctx, arg[0], arg[1], arg[2], minio.GetObjectOptions{}))
	case "range":
		first, _ := strconv.ParseInt(arg[3], 10, 64)
		last, _ := strconv.ParseInt(arg[4], 10, 64)
		options := minio.GetObjectOptions{}
		check(options.SetRange(first, last))
		object, err := c.GetObject(ctx, arg[0], arg[1], options)
		check(err)
		out, err := os.Create(arg[2])
		check(err)
		_, err = io.Copy(out, object)
		check(err)
	case "list":
		for found := range c.ListObjects(ctx, arg[0], minio.ListObjectsOptions{Prefix: arg[1], Recursive: true}) {
			check(found.Err)
			fmt.Println(found.Key)
		}
	case "copy":
		_, err = c.ComposeObject(ctx, minio.CopyDestOptions{Bucket: arg[0], Object: arg[2]},
			minio.CopySrcOptions{Bucket: arg[0], Object: arg[1]})
		check(err)
	case "delete":
		check(c.RemoveObject(ctx, arg[0], arg[1], minio.RemoveObjectOptions{}))
	case "delete_tree":
		found := c.ListObjects(ctx, arg[0], minio.ListObjectsOptions{Prefix: arg[1], Recursive: true})
		for failed := range c.RemoveObjects(ctx, arg[0], found, minio.RemoveObjectsOptions{}) {
			check(failed.Err)
		}
	case "put_metadata":
		_, err = c.FPutObject(ctx, arg[0], arg[1], arg[2],
			minio.PutObjectOptions{UserMetadata: map[string]string{"colour": "blue"}, UserTags: map[string]string{"a": "1"}})
		check(err)
	case "presign":
		url, err := c.PresignedGetObject(ctx, arg[0], arg[1], time.Hour, nil)
		check(err)
		fmt.Println(url)
	}
}

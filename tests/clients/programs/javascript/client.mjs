// The AWS SDK for JavaScript 3. The first argument names the operation.
import {
  CopyObjectCommand, CreateBucketCommand, DeleteObjectCommand, DeleteObjectsCommand, GetObjectCommand,
  PutObjectCommand, S3Client, paginateListObjectsV2,
} from "@aws-sdk/client-s3";
import { Upload } from "@aws-sdk/lib-storage";
import { getSignedUrl } from "@aws-sdk/s3-request-presigner";
import { createReadStream, createWriteStream, readFileSync, statSync } from "node:fs";
import { pipeline } from "node:stream/promises";

const [operation, Bucket, Key, ...rest] = process.argv.slice(2);
const s3 = new S3Client({ endpoint: process.env.AWS_ENDPOINT_URL, forcePathStyle: true });
const save = async (body, file) => pipeline(body, createWriteStream(file));
const keys = async function* (Prefix) {
  for await (const page of paginateListObjectsV2({ client: s3 }, { Bucket, Prefix })) {
    yield* (page.Contents ?? []).map((found) => found.Key);
  }
};

const operations = {
  version: async () => console.log(JSON.parse(readFileSync(new URL("node_modules/@aws-sdk/client-s3/package.json", import.meta.url))).version),
  create: async () => s3.send(new CreateBucketCommand({ Bucket })),
  put: async () =>
    statSync(rest[0]).size > 8 << 20
      ? new Upload({ client: s3, params: { Bucket, Key, Body: createReadStream(rest[0]) } }).done()
      : s3.send(new PutObjectCommand({ Bucket, Key, Body: readFileSync(rest[0]) })),
  put_unknown: async () => new Upload({ client: s3, params: { Bucket, Key, Body: process.stdin } }).done(),
  get: async () => save((await s3.send(new GetObjectCommand({ Bucket, Key }))).Body, rest[0]),
  range: async () =>
    save((await s3.send(new GetObjectCommand({ Bucket, Key, Range: `bytes=${rest[1]}-${rest[2]}` }))).Body, rest[0]),
  list: async () => { for await (const key of keys(Key)) console.log(key); },
  copy: async () => s3.send(new CopyObjectCommand({ Bucket, Key: rest[0], CopySource: `${Bucket}/${Key}` })),
  delete: async () => s3.send(new DeleteObjectCommand({ Bucket, Key })),
  delete_tree: async () => {
    const Objects = [];
    for await (const key of keys(Key)) Objects.push({ Key: key });
    await s3.send(new DeleteObjectsCommand({ Bucket, Delete: { Objects } }));
  },
  put_metadata: async () =>
    s3.send(new PutObjectCommand({ Bucket, Key, Body: readFileSync(rest[0]), Metadata: { colour: "blue" } })),
  presign: async () => console.log(await getSignedUrl(s3, new GetObjectCommand({ Bucket, Key }), { expiresIn: 600 })),
};
await operations[operation]();

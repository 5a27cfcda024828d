// Has s3rver replace an object in one step, as object stores do. By itself it writes over the one
// that is there, and answers before all is written.
"use strict";
const crypto = require("crypto");
const fs = require("fs");
const path = require("path");
const { Transform, pipeline } = require("stream");
const { promisify } = require("util");

const library = path.join(path.dirname(fs.realpathSync(process.argv[1])), "..", "lib");
const Store = require(path.join(library, "stores", "filesystem.js"));

Store.prototype.putObject = async function (object) {
  const target = this.getResourcePath(object.bucket, object.key, "object");
  // Not among the objects: listings stumble over a file that goes away.
  const name = `written-${crypto.randomBytes(8).toString("hex")}`;
  const written = path.join(path.dirname(this.rootDirectory), name);
  await fs.promises.mkdir(path.dirname(target), { recursive: true });
  const hash = crypto.createHash("md5");
  let size = 0;
  const count = (chunk) => {
    hash.update(chunk);
    size += chunk.length;
  };
  try {
    if (Buffer.isBuffer(object.content)) {
      count(object.content);
      await fs.promises.writeFile(written, object.content);
    } else {
      const counting = new Transform({
        transform(chunk, encoding, done) {
          count(chunk);
          done(null, chunk);
        },
      });
      await promisify(pipeline)(object.content, counting, fs.createWriteStream(written));
    }
  } catch (error) {
    await fs.promises.unlink(written).catch(() => {});
    throw error;
  }
  const md5 = hash.digest("hex");
  if (!fs.existsSync(target)) {
    // Names tell the content, so it is always the same.
    await this.putMetadata(object.bucket, object.key, object.metadata, md5);
  }
  await fs.promises.rename(written, target);
  return { size, md5 };
};

-- As little of S3 as benchmarks need, inside nginx; see s3_nginx.py.
--
-- nginx writes the body of each PUT into a file of its own and sends parts of files by itself; here
-- is only which key has which file. There is one worker, so that this table is the bucket.

local objects = {}
local by_digest = {}
local numbers = 0
local LARGE = 4 * 1024 * 1024 -- equal values from this size on are kept once

local function drop(key)
    local old = objects[key]
    objects[key] = nil
    if old and not old.shared then
        os.remove(old.file)
    end
end

local function size_of(file)
    local opened = assert(io.open(file, "rb"))
    local size = opened:seek("end")
    opened:close()
    return size
end

local function content_of(file)
    local opened = assert(io.open(file, "rb"))
    local content = opened:read("*a")
    opened:close()
    return content
end

local function shared(object)
    if object.size < LARGE then
        return object
    end
    local digest = ngx.md5_bin(content_of(object.file))
    local same = by_digest[digest]
    if same then
        os.remove(object.file)
        object.file = same
    end
    by_digest[digest] = object.file
    object.shared = true
    return object
end

local function refuse(status, code)
    ngx.status = status
    ngx.header["Content-Type"] = "application/xml"
    local text = "<Error><Code>" .. code .. "</Code><Message>refused</Message></Error>"
    ngx.header["Content-Length"] = #text
    ngx.print(text)
end

local function say(text)
    ngx.header["Content-Type"] = "application/xml"
    ngx.header["Content-Length"] = #text
    ngx.print(text)
end

-- Whether a condition of a request holds for what is there now. nginx would look at it once more,
-- with tags of its own.
local function holds(object)
    local match, none = ngx.var.http_if_match, ngx.var.http_if_none_match
    ngx.req.clear_header("If-Match")
    ngx.req.clear_header("If-None-Match")
    if match and (not object or match:gsub('"', "") ~= object.tag:gsub('"', "")) then -- as S3 does
        return false
    end
    return not (none and object and (none == "*" or none == object.tag))
end

local function put(key)
    if not holds(objects[key]) then
        return refuse(412, "PreconditionFailed")
    end
    numbers = numbers + 1
    local file = ngx.var.folder .. "/value-" .. numbers
    local body = ngx.req.get_body_file()
    if body then -- nginx removes the file of this name when the request ends
        assert(os.rename(body, file))
    else -- an empty value
        assert(io.open(file, "wb")):close()
    end
    drop(key)
    local tag = string.format('"%d"', numbers)
    objects[key] = shared({ file = file, size = size_of(file), tag = tag })
    ngx.header["ETag"] = tag
    ngx.header["Content-Length"] = 0
end

local function copy(key, source)
    local object = objects[ngx.unescape_uri(source):gsub("^/?[^/]+/", "")]
    if not object then
        return refuse(404, "NoSuchKey")
    end
    numbers = numbers + 1
    local file = ngx.var.folder .. "/value-" .. numbers
    local opened = assert(io.open(file, "wb"))
    opened:write(content_of(object.file))
    opened:close()
    drop(key)
    local tag = string.format('"%d"', numbers)
    objects[key] = shared({ file = file, size = object.size, tag = tag })
    say("<CopyObjectResult><ETag>" .. tag .. "</ETag></CopyObjectResult>")
end

local function get(key)
    local object = objects[key]
    if not object then
        return refuse(404, "NoSuchKey")
    end
    if not holds(object) then
        return refuse(412, "PreconditionFailed")
    end
    ngx.var.tag = object.tag
    return ngx.exec("/file/" .. object.file:match("[^/]+$"))
end

local function list(query)
    local prefix, delimiter = query.prefix or "", query.delimiter or ""
    if prefix == true then prefix = "" end
    if delimiter == true then delimiter = "" end
    local after = query["start-after"] or ""
    local keys, folders, seen = {}, {}, {}
    for key in pairs(objects) do
        if key:sub(1, #prefix) == prefix and key > after then
            local stop = delimiter ~= "" and key:find(delimiter, #prefix + 1, true)
            local folder = stop and key:sub(1, stop)
            if not folder then
                keys[#keys + 1] = key
            elseif not seen[folder] then
                seen[folder] = true
                folders[#folders + 1] = folder
            end
        end
    end
    table.sort(keys)
    table.sort(folders)
    local text = {
        '<?xml version="1.0"?><ListBucketResult><Name>bucket</Name><Prefix>', prefix,
        "</Prefix><KeyCount>", #keys + #folders,
        "</KeyCount><MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated>",
    }
    for _, key in ipairs(keys) do
        local object = objects[key]
        text[#text + 1] = "<Contents><Key>" .. key
            .. "</Key><LastModified>2015-10-21T07:28:00.000Z</LastModified><ETag>" .. object.tag
            .. "</ETag><Size>" .. object.size .. "</Size></Contents>"
    end
    for _, folder in ipairs(folders) do
        text[#text + 1] = "<CommonPrefixes><Prefix>" .. folder .. "</Prefix></CommonPrefixes>"
    end
    text[#text + 1] = "</ListBucketResult>"
    say(table.concat(text))
end

-- What is deleted is named in the body.
local function delete_some()
    local told = {}
    for key in content_of(ngx.req.get_body_file()):gmatch("<Key>([^<]*)</Key>") do
        drop(key)
        told[#told + 1] = "<Deleted><Key>" .. key .. "</Key></Deleted>"
    end
    say("<DeleteResult>" .. table.concat(told) .. "</DeleteResult>")
end

local function serve(latency)
    ngx.req.read_body()
    if latency > 0 then
        ngx.sleep(latency)
    end
    local method = ngx.req.get_method()
    local key = ngx.unescape_uri((ngx.var.request_uri:match("^/bucket/?([^?]*)")) or "")
    if key == "" then
        if method == "POST" then
            return delete_some()
        elseif method == "GET" then
            return list(ngx.req.get_uri_args())
        end
        return say("")
    end
    if method == "PUT" and ngx.var.http_x_amz_copy_source then
        return copy(key, ngx.var.http_x_amz_copy_source)
    elseif method == "PUT" then
        return put(key)
    elseif method == "DELETE" then
        drop(key)
        ngx.status = 204
        return
    end
    return get(key)
end

return { serve = serve }

-- usage_control is made by the image itself.
CREATE DATABASE usage_source OWNER usage;
